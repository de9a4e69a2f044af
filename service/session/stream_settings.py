"""What one stream asks for. The faces fill it from their wire; nothing here reads a wire or a file."""

from dataclasses import dataclass
from typing import Literal

from lm.search.hotwords import Hotword
from service.session.endpoint import EndpointRule


@dataclass(frozen=True)
class StreamSettings:
    """What one stream asks for."""

    channels: int = 1
    interim: bool = True
    endpointing_ms: int | None = 300
    """Trailing silence that ends an utterance; None: only length, Finalize and Finish do."""
    utterance_end_ms: int | None = None
    max_utterance_s: float = 30.0
    min_utterance_s: float = 0.0
    """Trailing silence ends no utterance that is shorter, silence included."""
    hotwords: tuple[Hotword, ...] = ()
    n_best: int = 1
    priority: Literal["live", "batch"] = "live"
    declared_file: bool = False
    """Sound that may come faster than real time: widest hops, several windows at once."""
    decoder: str = "beam"
    owner: str = ""
    """Who opened it (the key's name); only the same owner may resume it."""
    idle_limit_s: float | None = None
    """Failed("idle") after so long without push or keep_alive; None: never."""
    progress_every_s: float | None = None
    """A Progress event each time so much more sound has been processed; None: none."""

    @property
    def endpoint_rule(self) -> EndpointRule:
        """When utterances end."""
        return EndpointRule.of(self.endpointing_ms, self.max_utterance_s, self.min_utterance_s)


LIVE = StreamSettings()
"""Somebody waits for the end of an utterance: a short pause ends it."""
OFFLINE = StreamSettings(interim=False, endpointing_ms=600, max_utterance_s=60.0, min_utterance_s=5.0)
"""Nobody waits: longer utterances give the language model and the rescoring more context."""
