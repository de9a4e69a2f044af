"""Drives a session in a plain loop, without engine, workers or clock: the reference that services must equal."""

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from acoustic.architectures import ModelConfig, published
from acoustic.windows import Window, WindowOutput, WindowPlan, default_plan
from service.scheduling.decode_worker import OpenStream, UtteranceTable
from service.session.events import Event, Final
from service.session.messages import (
    AudioReceived,
    Configured,
    Decoded,
    Effect,
    Emit,
    EndUtterance,
    Finish,
    Input,
    PushFrames,
    Replay,
    RunWindow,
    WindowDone,
)
from service.session.session import Session
from service.session.stream_settings import StreamSettings

TINY = published["tiny"]
PLAN = default_plan(TINY)


class SynchronousDriver:
    """A session, a function for the network, and a real decoder, each effect carried out at once."""

    def __init__(
        self,
        network: Callable[[Window], WindowOutput],
        settings: StreamSettings,
        config: ModelConfig = TINY,
        plan: WindowPlan = PLAN,
        utterances: UtteranceTable | None = None,
    ) -> None:
        self.session = Session(config, plan, settings)
        self.network = network
        self.utterances = utterances or UtteranceTable(config.alphabet, None)
        self.utterances.handle([("s", OpenStream(settings.n_best, settings.hotwords, settings.decoder))])
        self.events: list[Event] = []
        self.handle(Configured("s", config.name))

    def handle(self, what: Input) -> None:
        """Let it happen, with everything that follows, in the order in which it follows."""
        following = deque(self.session.handle(what))
        while following:
            following.extend(self.execute(following.popleft()))

    def execute(self, effect: Effect) -> Iterator[Effect]:
        if isinstance(effect, RunWindow):
            yield from self.session.handle(WindowDone(effect.key, self.network(effect.window)))
        elif isinstance(effect, PushFrames | EndUtterance | Replay):
            at_once = self.utterances.handle([("s", effect)])
            ranked = (answer for done in iter(self.utterances.rescore_slice, None) for answer in done)
            for answer in (*at_once, *ranked):
                assert answer.error is None, answer.error
                yield from self.session.handle(Decoded(answer.serial, answer.hypotheses))
        elif isinstance(effect, Emit):
            self.events.append(effect.event)

    @property
    def finals(self) -> list[Final]:
        return [event for event in self.events if isinstance(event, Final)]


def transcribe(
    network: Callable[[Window], WindowOutput],
    samples: np.ndarray,
    settings: StreamSettings,
    config: ModelConfig = TINY,
    plan: WindowPlan = PLAN,
    utterances: UtteranceTable | None = None,
) -> list[Event]:
    """A whole recording [channels, n] in one push."""
    driver = SynchronousDriver(network, settings, config, plan, utterances)
    driver.handle(AudioReceived(samples))
    driver.handle(Finish())
    return driver.events


def spelling_model(character_at: Callable[[int], str | None]) -> Callable[[Window], WindowOutput]:
    """A network that hears `character_at(output frame)`: a letter, or None for blank."""

    def hear(window: Window) -> WindowOutput:
        span = window.span
        log_probs = np.full((span.kept, TINY.classes), -9.0, np.float32)
        for row, frame in enumerate(range(span.keep_first, span.keep_end)):
            letter = character_at(frame)
            column = TINY.blank if letter is None else TINY.alphabet.index(letter)
            log_probs[row, column] = -0.01
        return WindowOutput(span, log_probs)

    return hear


def alignment(text: str, every: int = 3, lead: int = 10) -> Callable[[int], str | None]:
    """One letter each `every` frames after a lead of blanks; then blanks for ever. `_` is a blank in its place."""

    def character_at(frame: int) -> str | None:
        at, rest = divmod(frame - lead, every)
        if rest or not 0 <= at < len(text) or text[at] == "_":
            return None
        return text[at]

    return character_at


def noise(seconds: float, channels: int = 1, level: float = 0.1, seed: int = 0) -> np.ndarray:
    """Loud where somebody would speak."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, level, (channels, round(seconds * 16000))).astype(np.float32)
