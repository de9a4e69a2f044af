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
        self.take(Configured("s", config.name))

    def take(self, what: Input) -> None:
        """Let it happen, with everything that follows, in the order in which it follows."""
        following = deque(self.session.take(what))
        while following:
            following.extend(self.carried_out(following.popleft()))

    def carried_out(self, effect: Effect) -> Iterator[Effect]:
        if isinstance(effect, RunWindow):
            yield from self.session.take(WindowDone(effect.key, self.network(effect.window)))
        elif isinstance(effect, PushFrames | EndUtterance | Replay):
            at_once = self.utterances.handle([("s", effect)])
            ranked = (answer for done in iter(self.utterances.rescore_slice, None) for answer in done)
            for answer in (*at_once, *ranked):
                assert answer.error is None, answer.error
                yield from self.session.take(Decoded(answer.serial, answer.hypotheses))
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
    loop = SynchronousDriver(network, settings, config, plan, utterances)
    loop.take(AudioReceived(samples))
    loop.take(Finish())
    return loop.events


def spelling_model(text_at: Callable[[int], str | None]) -> Callable[[Window], WindowOutput]:
    """A network that hears `text_at(output frame)`: a letter, or None for blank."""

    def hear(window: Window) -> WindowOutput:
        span = window.span
        log_probs = np.full((span.kept, TINY.classes), -9.0, np.float32)
        for row, frame in enumerate(range(span.keep_first, span.keep_end)):
            letter = text_at(frame)
            column = TINY.blank if letter is None else TINY.alphabet.index(letter)
            log_probs[row, column] = -0.01
        return WindowOutput(span, log_probs)

    return hear


def spoken(text: str, every: int = 3, lead: int = 10) -> Callable[[int], str | None]:
    """One letter each `every` frames after a lead of blanks; then blanks for ever. `_` is a blank in its place."""

    def text_at(frame: int) -> str | None:
        at, rest = divmod(frame - lead, every)
        if rest or not 0 <= at < len(text) or text[at] == "_":
            return None
        return text[at]

    return text_at


def noise(seconds: float, channels: int = 1, loudness: float = 0.1, seed: int = 0) -> np.ndarray:
    """Loud where somebody would speak."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, loudness, (channels, round(seconds * 16000))).astype(np.float32)
