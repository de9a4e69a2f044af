"""One stream as a state machine: takes inputs, answers effects. No I/O, no clock, no thread.

The table says which input means what in which state; what is not in it is late and ignored. Events leave in
the order of the sound: whatever follows from frames still at the decoder waits for the decoder's answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from acoustic.architectures import ModelConfig
from acoustic.constants import SAMPLE_RATE
from acoustic.windows import WindowPlan
from service.errors import ErrorCode
from service.session.channel import Channel
from service.session.events import (
    Closed,
    Event,
    Failed,
    MarkerReached,
    Progress,
    Started,
)
from service.session.messages import (
    AudioReceived,
    Cancel,
    Configured,
    Decoded,
    Disconnected,
    Effect,
    Emit,
    EndUtterance,
    Fail,
    Finalize,
    Finish,
    Input,
    PlaceMarker,
    PushFrames,
    Release,
    Resumed,
    RunWindow,
    WindowDone,
    WorkerLost,
)
from service.session.segment import SegmentEnd
from service.session.stream_settings import StreamSettings


class SessionState(Enum):
    """Where the stream stands."""

    OPEN = "open"
    STREAMING = "streaming"
    DRAINING = "draining"
    PARKED = "parked"
    CLOSED = "closed"


class Session:
    """The state of one stream; `take` is the only way in, its answer the only way out."""

    def __init__(self, config: ModelConfig, plan: WindowPlan, settings: StreamSettings) -> None:
        self.state = SessionState.OPEN
        self.settings = settings
        self.channels = [Channel(number, config, plan, settings) for number in range(settings.channels)]
        self.received_samples = 0
        self.windows_at_engine = 0
        self.outstanding: deque[PushFrames | EndUtterance] = deque()
        """Commands that the decode worker has not answered, oldest first."""
        self._before_parked = SessionState.STREAMING
        self._serial = 0
        self._last_decoded = 0
        self._deferred: deque[tuple[int, Callable[[], Event | None]]] = deque()
        self._marks: deque[tuple[str, int]] = deque()
        self._progress_samples = 0
        self._close_reason = "finished"
        self._effects: list[Effect] = []

    # ---- the way in

    def take(self, message: Input) -> list[Effect]:
        """Let something happen; the effects are to be carried out in their order."""
        self._effects = []
        action = TABLE[self.state].get(type(message))
        if action is not None:
            action(self, message)
        return self._effects

    @property
    def pending_work(self) -> int:
        """Work in flight: windows at the engine, before it and behind it, and commands at the decoder."""
        if self.state is SessionState.CLOSED:
            return 0
        waiting = sum(channel.waiting_windows + channel.out_of_order_windows for channel in self.channels)
        return self.windows_at_engine + waiting + len(self.outstanding)

    @property
    def pending_markers(self) -> int:
        """Marks whose sound is not yet heard."""
        return len(self._marks)

    @property
    def last_serial(self) -> int:
        """The serial of the newest command to the decoder."""
        return self._serial

    @property
    def processed_samples(self) -> int:
        """Samples of every channel whose words have been told."""
        return min(channel.emitted_samples for channel in self.channels)

    # ---- what the inputs mean

    def _configured(self, message: Configured) -> None:
        self.state = SessionState.STREAMING
        self._effects.append(Emit(Started(message.id, message.model)))

    def _audio(self, message: AudioReceived) -> None:
        self.received_samples += message.samples.shape[1]
        for channel, samples in zip(self.channels, message.samples, strict=True):
            if message.hop_frames is not None:
                self._run_windows(channel.set_hop(message.hop_frames))
            self._run_windows(channel.push(samples))

    def _audio_parked(self, message: AudioReceived) -> None:
        """What was still being decoded when the connection broke; behind a Finish there is no more sound."""
        if self._before_parked is SessionState.STREAMING:
            self._audio(message)

    def _finalize(self, message: Finalize) -> None:
        for channel in self.channels:
            self._run_windows(channel.end_segment(SegmentEnd.FINALIZE))
            self._advance(channel)

    def _finish(self, message: Finish) -> None:
        self.state, self._close_reason = SessionState.DRAINING, message.reason
        for channel in self.channels:
            self._run_windows(channel.end_segment(SegmentEnd.FINISH))
            self._advance(channel)
        self._close_when_done()

    def _finish_parked(self, message: Finish) -> None:
        if self._before_parked is SessionState.STREAMING:
            self._finish(message)
            if self.state is SessionState.DRAINING:
                self.state, self._before_parked = SessionState.PARKED, SessionState.DRAINING

    def _mark(self, message: PlaceMarker) -> None:
        self._marks.append((message.name, self.received_samples))
        self._emit_markers()

    def _window_outputs(self, message: WindowDone) -> None:
        channel = self.channels[message.key.channel]
        if not channel.awaits(message.key):
            return  # late or repeated
        self.windows_at_engine -= 1
        if message.output.error is not None:
            self._fail(
                Fail(
                    ErrorCode.AUDIO,
                    f"The sound of this stream could not be heard: {message.output.error}.",
                    "Send finite samples between -1 and 1.",
                )
            )
            return
        self._run_windows(channel.outputs(message.key, message.output))
        self._advance(channel)
        self._close_when_done()

    def _decoded(self, message: Decoded) -> None:
        if not self.outstanding or self.outstanding[0].serial != message.serial:
            return  # a worker that was given up speaks late
        command = self.outstanding.popleft()
        self._last_decoded = command.serial
        channel = self.channels[command.channel]
        event = channel.decoded(command, message.hypotheses)
        if event is not None:
            self._effects.append(Emit(event))
        self._emit_progress()
        while self._deferred and self._deferred[0][0] <= self._last_decoded:
            late = self._deferred.popleft()[1]()
            if late is not None:
                self._effects.append(Emit(late))
        self._emit_progress()
        self._close_when_done()

    def _disconnected(self, message: Disconnected) -> None:
        self._before_parked, self.state = self.state, SessionState.PARKED

    def _resumed(self, message: Resumed) -> None:
        self.state = self._before_parked

    def _decoder_lost(self, message: WorkerLost) -> None:
        for channel in self.channels:
            self._effects += channel.replays()
        self._effects += self.outstanding

    def _fail(self, message: Fail) -> None:
        self._end(Failed(message.code, message.message, message.advice), "failed")

    def _cancel(self, message: Cancel) -> None:
        self._end(None, message.reason)

    # ---- how things follow from each other

    def _run_windows(self, effects: Sequence[RunWindow]) -> None:
        self.windows_at_engine += len(effects)
        self._effects += effects

    def _advance(self, channel: Channel) -> None:
        """Everything that follows from frames that are now complete and in order."""
        for step in channel.advance(self._serial):
            if isinstance(step, PushFrames | EndUtterance):
                self._serial = step.serial
                self.outstanding.append(step)
                self._effects.append(step)
            else:
                self._emit_in_order(step)
        self._emit_markers()
        self._emit_progress()

    def _emit_in_order(self, event: Callable[[], Event | None]) -> None:
        """Tell it once everything before it is told: at once if nothing is at the decoder."""
        if self.outstanding:
            self._deferred.append((self._serial, event))
            return
        now = event()
        if now is not None:
            self._effects.append(Emit(now))

    def _emit_markers(self) -> None:
        while self._marks:
            name, position = self._marks[0]
            if min(channel.processed_samples for channel in self.channels) < position:
                return
            self._marks.popleft()
            self._emit_in_order(partial(MarkerReached, name))

    def _emit_progress(self) -> None:
        every = self.settings.progress_every_s
        if every is None:
            return
        processed = self.processed_samples
        if processed - self._progress_samples < every * SAMPLE_RATE:
            return
        self._progress_samples = processed
        received_s, processed_s = self.received_samples / SAMPLE_RATE, processed / SAMPLE_RATE
        self._effects.append(Emit(Progress(received_s, processed_s, received_s - processed_s)))

    def _close_when_done(self) -> None:
        draining = self.state is SessionState.DRAINING or (
            self.state is SessionState.PARKED and self._before_parked is SessionState.DRAINING
        )
        if draining and not self.outstanding and all(channel.done for channel in self.channels):
            while self._marks:
                self._effects.append(Emit(MarkerReached(self._marks.popleft()[0])))
            self._end(None, self._close_reason)

    def _end(self, failed: Failed | None, reason: str) -> None:
        self.state = SessionState.CLOSED
        self.outstanding.clear()
        self._deferred.clear()
        self._marks.clear()
        self.windows_at_engine = 0
        self._effects.append(Release())
        if failed is not None:
            self._effects.append(Emit(failed))
        self._effects.append(Emit(Closed(reason, self.received_samples / SAMPLE_RATE)))


Actions = dict[type[Any], Callable[[Session, Any], None]]

PROCESSING: Actions = {
    WindowDone: Session._window_outputs,
    Decoded: Session._decoded,
    WorkerLost: Session._decoder_lost,
    Fail: Session._fail,
    Cancel: Session._cancel,
}
TABLE: dict[SessionState, Actions] = {
    SessionState.OPEN: {
        Configured: Session._configured,
        Fail: Session._fail,
        Cancel: Session._cancel,
    },
    SessionState.STREAMING: {
        **PROCESSING,
        AudioReceived: Session._audio,
        Finalize: Session._finalize,
        PlaceMarker: Session._mark,
        Finish: Session._finish,
        Disconnected: Session._disconnected,
    },
    SessionState.DRAINING: {
        **PROCESSING,
        PlaceMarker: Session._mark,
        Disconnected: Session._disconnected,
    },
    SessionState.PARKED: {
        **PROCESSING,
        AudioReceived: Session._audio_parked,
        Finish: Session._finish_parked,
        Resumed: Session._resumed,
    },
    SessionState.CLOSED: {},
}
