"""One client's stream: carries the session's effects out, holds its sound back, hands its events on.

The session decides; this is its driver on the event loop. Opening and resuming are the recognizer's.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from acoustic.constants import OUTPUT_SAMPLES, SAMPLE_RATE
from acoustic.windows import WindowOutput
from service.errors import ErrorCode, ServiceError
from service.metrics import Metrics
from service.scheduling.decode_worker import DecodeResult
from service.scheduling.device import Device
from service.scheduling.latency_metrics import LatencyMetrics
from service.session.event_log import EventLog
from service.session.events import Closed, Event, Final
from service.session.messages import (
    AudioReceived,
    Cancel,
    Configured,
    Decoded,
    Disconnected,
    Emit,
    EndUtterance,
    Fail,
    Finalize,
    Finish,
    Input,
    PlaceMarker,
    PushFrames,
    Release,
    Replay,
    Resumed,
    RunWindow,
    WindowDone,
    WindowKey,
    WorkerLost,
)
from service.session.session import Session, SessionState
from service.session.stream_settings import StreamSettings

log = logging.getLogger("silica.stream")

PIECE_SAMPLES = 5120
"""However large a message is, the session takes it in pieces of 0.32 s and may say stop between two."""
LIVE_CREDIT = 4
FILE_CREDIT = 12
"""Windows of a channel in flight; at the bound `push` waits, and so does whoever feeds it."""
MAX_MARKERS = 256


class StreamHost(Protocol):
    """What a stream needs of the recognizer that opened it."""

    @property
    def metrics(self) -> Metrics:
        """Where the stream counts its audio and its latency."""

    @property
    def device(self) -> Device:
        """Runs the stream's windows and holds its decoder."""

    def now_s(self) -> float:
        """The clock: monotonic seconds."""

    def hop_frames(self, widest: bool) -> int:
        """The hop of the next windows; `widest` for files and for streams that lag."""

    def stream_closed(self, stream: "Stream", reason: str) -> None:
        """The stream has emitted Closed; its slot is free."""


class Stream:
    """One client's sound and what is heard in it. Push and read may run in different tasks of one loop."""

    def __init__(self, stream_id: str, settings: StreamSettings, session: Session, host: StreamHost) -> None:
        self.id = stream_id
        self.settings = settings
        self.received_samples = 0
        self.session = session
        self.last_activity_s = host.now_s()
        self._host = host
        self._metrics = host.metrics
        self._live = settings.priority == "live"
        fast = settings.declared_file or not self._live
        self._credit = (FILE_CREDIT if fast else LIVE_CREDIT) * settings.channels
        self._wide = fast
        self._hop_frames = 0
        self._log = EventLog()
        self._latency = LatencyMetrics(host.metrics)
        self._buffered: list[npt.NDArray[np.float32]] = []
        self._buffered_samples = 0
        self._ready_s: dict[WindowKey, float] = {}
        self._serial_ready_s: dict[int, float] = {}
        self._processed_samples = 0
        self._reader = 0
        self._event_ready: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._processed: asyncio.Future[None] | None = None

    # ---- what a face does

    async def push(self, samples: npt.NDArray[np.float32]) -> None:
        """Sound [channels, n], float32, 16 kHz. Waits while too much is unheard: that is the back-pressure.

        ServiceError "audio" for a wrong shape; ServiceError "closed" after the end.
        """
        if samples.ndim != 2 or samples.shape[0] != self.settings.channels or samples.dtype != np.float32:
            raise ServiceError(
                ErrorCode.AUDIO,
                f"Expected float32 [{self.settings.channels}, n], got {samples.dtype} {samples.shape}.",
                "Declare the number of channels that is sent.",
            )
        self._check_open()
        now_s = self.last_activity_s = self._host.now_s()
        self.received_samples += samples.shape[1]
        self._latency.arrived(self.received_samples, now_s)
        self._metrics.audio_received_s.inc(samples.shape[1] / SAMPLE_RATE)
        self._buffered.append(samples)
        self._buffered_samples += samples.shape[1]
        if self._buffered_samples >= OUTPUT_SAMPLES:
            await self._flush()

    def keep_alive(self) -> None:
        """The client is there, though silent."""
        self.last_activity_s = self._host.now_s()

    async def finalize(self) -> None:
        """Everything sent so far becomes final now; one Final(from_finalize) a channel, even when empty."""
        self._check_open()
        await self._flush()
        self._latency.final_asked(self._host.now_s())
        self._take(Finalize())

    async def mark(self, name: str) -> None:
        """Ask for Marked(name) once everything sent before it has been heard (Finish brings it too)."""
        self._check_open()
        await self._flush()
        if self.session.pending_markers >= MAX_MARKERS:
            raise ServiceError(
                ErrorCode.MARKS,
                f"More than {MAX_MARKERS} marks wait to be heard.",
                "Send fewer, or more sound between.",
            )
        self._take(PlaceMarker(name))

    async def wait_processed(self, limit_s: float) -> None:
        """Wait until what can be heard of the sound so far has been heard and told; at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.session.pending_work and not self.closed:
                    self._processed = asyncio.get_running_loop().create_future()
                    await self._processed

    async def finish(self) -> None:
        """No more sound; the rest is heard, told, and Closed("finished") follows."""
        if self.closed or self.session.state is SessionState.DRAINING:
            return
        await self._flush()
        self._latency.final_asked(self._host.now_s())
        self._take(Finish())

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop now: what is unheard is dropped, Closed follows."""
        self._take(Cancel(reason))

    def fail(self, code: ErrorCode, message: str, advice: str = "") -> None:
        """The face found the sound unusable: Failed, then Closed("failed")."""
        self._take(Fail(code, message, advice))

    async def events(self) -> AsyncIterator[Event]:
        """Every event, in order, ending after Closed. One reader at a time."""
        async for _, event in self.numbered():
            yield event

    async def numbered(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """The same with its number (1, 2, ...), from `after` on. Superseded partials are left out."""
        self._reader += 1
        mine = self._reader
        self._wake(self._event_ready)
        self._log.rewind(after)
        # A parked stream has no reader: one that begins late must not take what the resumed one should get.
        while mine == self._reader and self.session.state is not SessionState.PARKED:
            entry = self._log.next()
            if entry is None:
                if self.closed:
                    return
                self._event_ready = asyncio.get_running_loop().create_future()
                await self._event_ready
                continue
            yield entry
            if isinstance(entry[1], Closed):
                return

    @property
    def closed(self) -> bool:
        """Closed has been told."""
        return self.session.state is SessionState.CLOSED

    # ---- what the recognizer does

    def begin(self, model: str) -> None:
        """The stream is accepted."""
        self._take(Configured(self.id, model))

    def window_done(self, key: WindowKey, window_done: WindowOutput) -> None:
        """The engine has heard a window."""
        ready_s = self._ready_s.pop(key, None)
        before = self.session.last_serial
        self._take(WindowDone(key, window_done))
        self._flush_wide_hop()
        after = self.session.last_serial
        if ready_s is not None:
            if after > before and not self.closed:
                self._serial_ready_s[after] = ready_s
            else:
                self._metrics.chunk_response_s.observe(max(0.0, self._host.now_s() - ready_s))
        self._measure_progress()

    def decoded(self, answer: DecodeResult) -> None:
        """The decode worker has answered."""
        begin_s = self._host.now_s()
        self._metrics.decode_s.observe(answer.decode_s)
        if answer.error is not None:
            log.error("stream %s cannot be decoded: %s", self.id, answer.error)
            self._take(
                Fail(
                    ErrorCode.DECODER, "The words of this stream could not be searched.", "Open a new stream."
                )
            )
            return
        self._take(Decoded(answer.serial, answer.hypotheses))
        self._flush_wide_hop()
        now_s = self._host.now_s()
        self._metrics.emit_s.observe(max(0.0, now_s - begin_s))
        ready_s = self._serial_ready_s.pop(answer.serial, None)
        if ready_s is not None:
            self._metrics.chunk_response_s.observe(max(0.0, now_s - ready_s))
        self._measure_progress()

    def worker_lost(self) -> None:
        """The decode worker is new: it hears again what it must know."""
        self._take(WorkerLost())

    def park(self) -> None:
        """The client vanished."""
        self._reader += 1
        self._wake(self._event_ready)
        self._take(Disconnected())

    def unpark(self) -> None:
        """The client is back."""
        self.last_activity_s = self._host.now_s()
        self._take(Resumed())

    def can_resume(self, after: int) -> bool:
        """Whether a reader that saw everything up to `after` can go on without a gap."""
        return self._log.can_resume(after)

    def drain(self) -> None:
        """The server stops: as Finish, without a client to ask for it."""
        if self.session.state in (SessionState.STREAMING, SessionState.PARKED):
            self._flush_now()
            self._take(Finish("drained"))

    # ---- inside

    def _check_open(self) -> None:
        if self.session.state is not SessionState.STREAMING:
            raise ServiceError(
                ErrorCode.CLOSED,
                "This stream takes no more sound: it is finished or closed.",
                "Open another one.",
            )

    async def _flush(self) -> None:
        """The sound so far into the session, piece by piece, as room allows; cancelled, it goes on next time."""
        while self._buffered_samples:
            while self.session.pending_work >= self._credit and not self.closed:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
            if self.session.state is not SessionState.STREAMING:
                self._check_open()
            self._feed(self._next_piece())

    def _flush_now(self) -> None:
        while self._buffered_samples:
            self._feed(self._next_piece())

    def _next_piece(self) -> npt.NDArray[np.float32]:
        samples = self._buffered[0] if len(self._buffered) == 1 else np.concatenate(self._buffered, axis=1)
        piece, rest = samples[:, :PIECE_SAMPLES], samples[:, PIECE_SAMPLES:]
        self._buffered, self._buffered_samples = ([rest] if rest.size else []), rest.shape[1]
        return piece

    def _feed(self, samples: npt.NDArray[np.float32]) -> None:
        behind = self._wide or self.session.pending_work >= 3 * self.settings.channels
        self._hop_frames = self._host.hop_frames(widest=behind)
        self._take(AudioReceived(samples, self._hop_frames))

    def _flush_wide_hop(self) -> None:
        """What was kept for a wider hop while this stream was behind need not wait for more sound now."""
        if self._wide or self.session.pending_work or self.session.state is not SessionState.STREAMING:
            return
        if self._hop_frames > self._host.hop_frames(widest=False):
            self._feed(np.zeros((self.settings.channels, 0), np.float32))

    def _take(self, message: Input) -> None:
        for effect in self.session.take(message):
            if isinstance(effect, RunWindow):
                self._ready_s[effect.key] = self._host.now_s()
                self._host.device.submit(self.id, effect.key, effect.window, self._live, effect.urgent)
            elif isinstance(effect, PushFrames | EndUtterance | Replay):
                self._host.device.send(self.id, effect)
            elif isinstance(effect, Emit):
                self._emit(effect.event)
            elif isinstance(effect, Release):
                self._host.device.release(self.id, list(self._ready_s))
                self._ready_s.clear()
                self._serial_ready_s.clear()
                self._buffered, self._buffered_samples = [], 0
        if self._log.overflowing and not self.closed:
            self._take(
                Fail(
                    ErrorCode.SLOW_READER,
                    "The events of this stream are not being read.",
                    "Read faster, or ask for fewer.",
                )
            )
        if self.session.pending_work < self._credit or self.closed:
            self._wake(self._room)
        if not self.session.pending_work or self.closed:
            self._wake(self._processed)

    def _emit(self, event: Event) -> None:
        self._log.append(event)
        self._latency.emitted(event, self._host.now_s())
        if isinstance(event, Final):
            ratio = self.session.channels[event.channel].transcript.revision_ratio
            self._metrics.partial_revision.observe(ratio)
        elif isinstance(event, Closed):
            self._measure_progress()
            dropped = self.received_samples - self._processed_samples
            self._metrics.audio_dropped_s.inc(max(0, dropped) / SAMPLE_RATE)
            self._host.stream_closed(self, event.reason)
        self._wake(self._event_ready)

    def _measure_progress(self) -> None:
        processed = self.session.processed_samples
        if processed > self._processed_samples:
            self._metrics.audio_processed_s.inc((processed - self._processed_samples) / SAMPLE_RATE)
            self._processed_samples = processed
            self._metrics.lag_s.observe(max(0, self.received_samples - processed) / SAMPLE_RATE)

    @staticmethod
    def _wake(waiter: "asyncio.Future[None] | None") -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
