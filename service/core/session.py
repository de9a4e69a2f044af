"""One stream as a state machine: takes inputs, answers effects. No I/O, no clock, no thread.

The table says which input means what in which state; what is not in it is late and ignored. Events leave in
the order of the sound: whatever follows from frames still at the decoder waits for the decoder's answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from acoustic.config import ModelConfig
from acoustic.constants import SAMPLE_RATE
from acoustic.windows import WindowPlan
from service.core.channel import Channel
from service.core.events import (
    Closed,
    Event,
    Failed,
    Marked,
    Progress,
    Started,
)
from service.core.messages import (
    Abandon,
    Audio,
    Broken,
    Cancel,
    Conclude,
    Configured,
    Decoded,
    Disconnected,
    Effect,
    Finalize,
    Finish,
    Hear,
    Input,
    Logits,
    Mark,
    Push,
    Resumed,
    Tell,
    WorkerLost,
)
from service.core.segment import Heading
from service.core.stream_settings import StreamSettings
from service.errors import ErrorCode


class State(Enum):
    """Where the stream stands."""

    OPEN = "open"
    STREAMING = "streaming"
    DRAINING = "draining"
    PARKED = "parked"
    CLOSED = "closed"


class Session:
    """The state of one stream; `take` is the only way in, its answer the only way out."""

    def __init__(self, config: ModelConfig, plan: WindowPlan, settings: StreamSettings) -> None:
        self.state = State.OPEN
        self.settings = settings
        self.channels = [Channel(number, config, plan, settings) for number in range(settings.channels)]
        self.received_samples = 0
        self.windows_at_engine = 0
        self.outstanding: deque[Push | Conclude] = deque()
        """Commands that the decode worker has not answered, oldest first."""
        self._before_parked = State.STREAMING
        self._serial = 0
        self._answered = 0
        self._after: deque[tuple[int, Callable[[], Event | None]]] = deque()
        self._marks: deque[tuple[str, int]] = deque()
        self._progress_samples = 0
        self._close_reason = "finished"
        self._effects: list[Effect] = []

    # ---- the way in

    def take(self, what: Input) -> list[Effect]:
        """Let something happen; the effects are to be carried out in their order."""
        self._effects = []
        action = TABLE[self.state].get(type(what))
        if action is not None:
            action(self, what)
        return self._effects

    @property
    def unheard_windows(self) -> int:
        """Work in flight: windows at the engine, before it and behind it, and commands at the decoder."""
        if self.state is State.CLOSED:
            return 0
        waiting = sum(channel.held + channel.early for channel in self.channels)
        return self.windows_at_engine + waiting + len(self.outstanding)

    @property
    def pending_marks(self) -> int:
        """Marks whose sound is not yet heard."""
        return len(self._marks)

    @property
    def last_serial(self) -> int:
        """The serial of the newest command to the decoder."""
        return self._serial

    @property
    def processed_samples(self) -> int:
        """Samples of every channel whose words have been told."""
        return min(channel.told_samples for channel in self.channels)

    # ---- what the inputs mean

    def _configured(self, what: Configured) -> None:
        self.state = State.STREAMING
        self._effects.append(Tell(Started(what.id, what.model)))

    def _audio(self, what: Audio) -> None:
        self.received_samples += what.samples.shape[1]
        for channel, samples in zip(self.channels, what.samples, strict=True):
            if what.hop_frames is not None:
                self._hear(channel.set_hop(what.hop_frames))
            self._hear(channel.push(samples))

    def _audio_parked(self, what: Audio) -> None:
        """What was still being decoded when the connection broke; behind a Finish there is no more sound."""
        if self._before_parked is State.STREAMING:
            self._audio(what)

    def _finalize(self, what: Finalize) -> None:
        for channel in self.channels:
            self._hear(channel.end_segment(Heading.FINALIZE))
            self._advance(channel)

    def _finish(self, what: Finish) -> None:
        self.state, self._close_reason = State.DRAINING, what.reason
        for channel in self.channels:
            self._hear(channel.end_segment(Heading.FINISH))
            self._advance(channel)
        self._close_when_done()

    def _finish_parked(self, what: Finish) -> None:
        if self._before_parked is State.STREAMING:
            self._finish(what)
            if self.state is State.DRAINING:
                self.state, self._before_parked = State.PARKED, State.DRAINING

    def _mark(self, what: Mark) -> None:
        self._marks.append((what.name, self.received_samples))
        self._tell_marks()

    def _logits(self, what: Logits) -> None:
        channel = self.channels[what.key.channel]
        if not channel.awaits(what.key):
            return  # late or repeated
        self.windows_at_engine -= 1
        if what.heard.error is not None:
            self._broken(
                Broken(
                    ErrorCode.AUDIO,
                    f"The sound of this stream could not be heard: {what.heard.error}.",
                    "Send finite samples between -1 and 1.",
                )
            )
            return
        self._hear(channel.heard(what.key, what.heard))
        self._advance(channel)
        self._close_when_done()

    def _decoded(self, what: Decoded) -> None:
        if not self.outstanding or self.outstanding[0].serial != what.serial:
            return  # a worker that was given up speaks late
        command = self.outstanding.popleft()
        self._answered = command.serial
        channel = self.channels[command.channel]
        event = channel.answered(command, what.hypotheses)
        if event is not None:
            self._effects.append(Tell(event))
        self._tell_progress()
        while self._after and self._after[0][0] <= self._answered:
            late = self._after.popleft()[1]()
            if late is not None:
                self._effects.append(Tell(late))
        self._tell_progress()
        self._close_when_done()

    def _disconnected(self, what: Disconnected) -> None:
        self._before_parked, self.state = self.state, State.PARKED

    def _resumed(self, what: Resumed) -> None:
        self.state = self._before_parked

    def _worker_lost(self, what: WorkerLost) -> None:
        for channel in self.channels:
            self._effects += channel.replays()
        self._effects += self.outstanding

    def _broken(self, what: Broken) -> None:
        self._end(Failed(what.code, what.message, what.advice), "failed")

    def _cancel(self, what: Cancel) -> None:
        self._end(None, what.reason)

    # ---- how things follow from each other

    def _hear(self, effects: Sequence[Hear]) -> None:
        self.windows_at_engine += len(effects)
        self._effects += effects

    def _advance(self, channel: Channel) -> None:
        """Everything that follows from frames that are now complete and in order."""
        for step in channel.advance(self._serial):
            if isinstance(step, Push | Conclude):
                self._serial = step.serial
                self.outstanding.append(step)
                self._effects.append(step)
            else:
                self._say(step)
        self._tell_marks()
        self._tell_progress()

    def _say(self, event: Callable[[], Event | None]) -> None:
        """Tell it once everything before it is told: at once if nothing is at the decoder."""
        if self.outstanding:
            self._after.append((self._serial, event))
            return
        now = event()
        if now is not None:
            self._effects.append(Tell(now))

    def _tell_marks(self) -> None:
        while self._marks:
            name, position = self._marks[0]
            if min(channel.processed_samples for channel in self.channels) < position:
                return
            self._marks.popleft()
            self._say(partial(Marked, name))

    def _tell_progress(self) -> None:
        every = self.settings.progress_every_s
        if every is None:
            return
        processed = self.processed_samples
        if processed - self._progress_samples < every * SAMPLE_RATE:
            return
        self._progress_samples = processed
        received_s, processed_s = self.received_samples / SAMPLE_RATE, processed / SAMPLE_RATE
        self._effects.append(Tell(Progress(received_s, processed_s, received_s - processed_s)))

    def _close_when_done(self) -> None:
        draining = self.state is State.DRAINING or (
            self.state is State.PARKED and self._before_parked is State.DRAINING
        )
        if draining and not self.outstanding and all(channel.done for channel in self.channels):
            while self._marks:
                self._effects.append(Tell(Marked(self._marks.popleft()[0])))
            self._end(None, self._close_reason)

    def _end(self, failed: Failed | None, reason: str) -> None:
        self.state = State.CLOSED
        self.outstanding.clear()
        self._after.clear()
        self._marks.clear()
        self.windows_at_engine = 0
        self._effects.append(Abandon())
        if failed is not None:
            self._effects.append(Tell(failed))
        self._effects.append(Tell(Closed(reason, self.received_samples / SAMPLE_RATE)))


Actions = dict[type[Any], Callable[[Session, Any], None]]

HEARING: Actions = {
    Logits: Session._logits,
    Decoded: Session._decoded,
    WorkerLost: Session._worker_lost,
    Broken: Session._broken,
    Cancel: Session._cancel,
}
TABLE: dict[State, Actions] = {
    State.OPEN: {
        Configured: Session._configured,
        Broken: Session._broken,
        Cancel: Session._cancel,
    },
    State.STREAMING: {
        **HEARING,
        Audio: Session._audio,
        Finalize: Session._finalize,
        Mark: Session._mark,
        Finish: Session._finish,
        Disconnected: Session._disconnected,
    },
    State.DRAINING: {
        **HEARING,
        Mark: Session._mark,
        Disconnected: Session._disconnected,
    },
    State.PARKED: {
        **HEARING,
        Audio: Session._audio_parked,
        Finish: Session._finish_parked,
        Resumed: Session._resumed,
    },
    State.CLOSED: {},
}
