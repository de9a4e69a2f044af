"""The one facade that every face uses: a Recognizer takes in streams, a Stream takes sound and tells events.

No wire format and no HTTP here. Everything runs on one event loop; the work is done by the engine's and the
decoder's workers.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from acoustic.windows import WindowOutput, with_hop
from lm.errors import LanguageError
from lm.search.hotwords import normalize_hotwords
from service.errors import ErrorCode, ServiceError
from service.metrics import Metrics
from service.scheduling.decode_worker import DecodeResult, OpenStream
from service.scheduling.device import Device, DeviceClient, DeviceOptions, LocalDevice
from service.scheduling.shared_counters import SharedCounters, columns_for
from service.session.messages import WindowKey
from service.session.session import Session
from service.session.stream_settings import StreamSettings
from service.stream import Stream

__all__ = ["Capacity", "Recognizer", "RecognizerOptions", "Stream", "StreamSettings"]

SWEEP_S = 0.5
"""One timer for all streams: idle limits and parked ones."""
FINISH_S = 10.0
"""How long the finals of drained streams are waited for."""
RETRY_S = 5.0
BATCH_STREAMS_PER_EXECUTOR = 4
DEFAULT_STREAM = StreamSettings()


@dataclass(frozen=True)
class RecognizerOptions(DeviceOptions):
    """How the recognizer uses the machine, and how long it keeps who vanished."""

    resume_s: float = 30.0
    parked_limit: int = 256


@dataclass(frozen=True)
class Capacity:
    """What the device carries now, for everybody that it serves, and how much it could."""

    streams: int
    stream_capacity: int
    parked: int
    hop_s: float
    load: float
    waiting_windows: int


class Recognizer:
    """Takes in streams while there is room; owns planner, engine and decode workers."""

    def __init__(
        self,
        model: str,
        kind: Literal["cpu", "cuda"] = "cpu",
        options: RecognizerOptions = RecognizerOptions(),
        metrics: Metrics | None = None,
        counters: SharedCounters | None = None,
        open_device: Callable[[DeviceClient], Device] | None = None,
    ) -> None:
        self.model_name = model
        self.options = options
        self.metrics = metrics if metrics is not None else Metrics()
        self.counters = counters if counters is not None else SharedCounters(columns_for((model,)))
        self.device: Device
        if open_device is None:
            self.device = LocalDevice(model, kind, options, self.metrics, self.counters, self)
        else:
            self.device = open_device(self)
        self._hops: dict[float, int] = {}
        self._streams: dict[str, Stream] = {}
        self._parked: dict[str, tuple[Stream, float]] = {}
        self._parked_counted = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_at_s = float("inf")
        self._hop_pinned = False
        self._empty = asyncio.Event()
        self._started = False
        self._draining = False

    # ---- life

    async def start(self) -> None:
        """Start the device. Returns when streams may come."""
        await self.device.start()
        config, plan = self.device.config, self.device.plan
        self._hops = {
            hop_s: with_hop(config, plan, hop_s).hop_frames for hop_s in sorted(self.options.hops_s)
        }
        self._started = True
        self._empty.set()
        self.metrics.model.labels(self.model_name, config.name, self.device.kind, self.device.precision).set(
            1
        )
        self._sweep()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Take no more streams, let the open ones finish for so long, then finish what is open and stop."""
        self._draining = True
        if self._started:
            await self._wait_empty(drain_s)
            for stream in list(self._streams.values()):
                stream.drain()
            await self._wait_empty(FINISH_S)
            for stream in list(self._streams.values()):
                stream.cancel("drained")
            self._parked.clear()
            self._count_parked()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.device.stop()

    def retire(self) -> None:
        """Another follows under this name: no new streams."""
        self._draining = True
        self.device.retire()

    @property
    def ready(self) -> bool:
        """Warm, workers of both kinds alive, and not draining."""
        return self._started and not self._draining and self.device.alive

    @property
    def draining(self) -> bool:
        """No more streams are taken in."""
        return self._draining

    # ---- streams

    def open(self, settings: StreamSettings = DEFAULT_STREAM) -> Stream:
        """A new stream; ServiceError "capacity" (with retry_after_s) when full, "draining" when stopping."""
        self._check_capacity(settings)
        hotwords = self._checked_hotwords(settings)
        config = self.device.config
        session = Session(config, with_hop(config, self.device.plan, max(self._hops)), settings)
        stream = Stream(new_id(self.counters.row), settings, session, self)
        self._streams[stream.id] = stream
        self._count(settings, +1)
        self.metrics.sessions.inc()
        self.device.pin(stream.id, OpenStream(settings.n_best, hotwords, settings.decoder))
        stream.begin(self.model_name)
        return stream

    def park(self, stream: Stream) -> None:
        """Its client vanished: keep it for `resume_s`; work in flight goes on. Then Closed("lost")."""
        if stream.id in self._parked:
            return
        if self.options.resume_s <= 0 or self.options.parked_limit <= 0:
            stream.cancel("lost")
            return
        while len(self._parked) >= self.options.parked_limit:
            oldest = next(iter(self._parked))
            self._parked.pop(oldest)[0].cancel("lost")
        self._parked[stream.id] = (stream, self.now_s() + self.options.resume_s)
        self._count_parked()
        stream.park()

    def resume(self, stream_id: str, owner: str = "", after: int = 0) -> Stream:
        """The parked stream again; ServiceError "resume" when unknown, expired, or of another owner.

        Then read `stream.numbered(after)`, and go on pushing from `stream.received_samples`.
        """
        stream = self._parked[stream_id][0] if stream_id in self._parked else None
        if stream is None or stream.settings.owner != owner or not stream.can_resume(after):
            raise ServiceError(
                ErrorCode.RESUME,
                "There is no such stream to go on with: unknown, expired, or it misses what you have not seen.",
                "Open a new stream and send the sound again from where your last final ended.",
            )
        del self._parked[stream_id]
        self._count_parked()
        self.metrics.sessions_resumed.inc()
        stream.unpark()
        return stream

    def pin_hop(self, hop_s: float | None) -> None:
        """Keep to one of the hops whatever the load (None: by load again): for measurements."""
        if hop_s is not None and hop_s not in self._hops:
            raise ServiceError(ErrorCode.HOP, f"No hop of {hop_s} s.", f"There are {sorted(self._hops)}.")
        self._hop_pinned = hop_s is not None
        self.device.pin_hop(hop_s)

    def capacity(self) -> Capacity:
        """Room and load now."""
        return Capacity(
            round(self._counter("live") + self._counter("batch")),
            self._stream_capacity(),
            len(self._parked),
            self._counter("hop_s"),
            self._counter("load"),
            round(self._counter("waiting")),
        )

    # ---- StreamHost

    def now_s(self) -> float:
        """The one clock."""
        return asyncio.get_running_loop().time()

    def hop_frames(self, widest: bool) -> int:
        """The hop of windows to come: the one in force, or the widest for files and for who is behind."""
        wide = widest and not self._hop_pinned
        return self._hops[max(self._hops) if wide else self._counter("hop_s")]

    def stream_closed(self, stream: Stream, reason: str) -> None:
        """A stream has told Closed: its slot is free. Counted here and nowhere else."""
        if self._streams.pop(stream.id, None) is None:
            return
        self._count(stream.settings, -1)
        self.metrics.sessions_closed.labels(code=reason).inc()
        if not self._streams:
            self._empty.set()

    # ---- what the device says (Client)

    def window_done(self, stream: str, key: WindowKey, window_done: WindowOutput) -> None:
        """A window was heard."""
        if stream in self._streams:
            self._streams[stream].window_done(key, window_done)

    def decoded(self, stream: str, answer: DecodeResult) -> None:
        """The decode worker answered."""
        if stream in self._streams:
            self._streams[stream].decoded(answer)

    def decoder_lost(self, stream: str) -> None:
        """The stream's decode worker is new."""
        if stream in self._streams:
            self._streams[stream].worker_lost()

    def stream_abandoned(self, stream: str) -> None:
        """The stream kills its decode workers."""
        if stream in self._streams:
            self._streams[stream].fail(
                ErrorCode.DECODER,
                "The words of this stream could not be searched: its worker died of it, repeatedly.",
            )

    # ---- inside

    def _check_capacity(self, settings: StreamSettings) -> None:
        if not self._started or self._draining:
            raise ServiceError(
                ErrorCode.DRAINING, "The server takes no new streams.", "Try another server, or this one later.",
                retry_after_s=RETRY_S,
            )  # fmt: skip
        if not 1 <= settings.channels <= 8:
            raise ServiceError(ErrorCode.CHANNELS, f"{settings.channels} channels.", "A stream has 1 to 8.")
        if settings.priority == "live":
            full = self._counter("live") + settings.channels > self._stream_capacity()
        else:
            full = self._counter("batch") >= BATCH_STREAMS_PER_EXECUTOR * max(1, self._counter("alive"))
        if full:
            raise ServiceError(
                ErrorCode.CAPACITY,
                f"All {self._stream_capacity()} streams of this server are taken.",
                "Try again soon, or another server.",
                retry_after_s=RETRY_S,
            )

    def _checked_hotwords(self, settings: StreamSettings) -> tuple[object, ...]:
        from lm.search.settings import SearchSettings

        try:
            hotwords = normalize_hotwords(settings.hotwords, self.device.config.alphabet)
            SearchSettings(n_best=settings.n_best, hotwords=hotwords)
        except LanguageError as error:
            raise ServiceError(ErrorCode.HOTWORDS, str(error)) from None
        return hotwords

    def _counter(self, name: str) -> float:
        """One of the figures that everybody who serves this model shares."""
        return self.counters.total(f"{name}:{self.model_name}")

    def _stream_capacity(self) -> int:
        return round(self._counter("most"))

    def _count(self, settings: StreamSettings, change: int) -> None:
        if settings.priority == "live":
            self.counters.add(f"live:{self.model_name}", change * settings.channels)
        else:
            self.counters.add(f"batch:{self.model_name}", change)
        self._empty.clear()
        self.metrics.sessions_open.inc(change)

    def _count_parked(self) -> None:
        """By its change, since several recognizers share the gauge."""
        self.metrics.sessions_parked.inc(len(self._parked) - self._parked_counted)
        self._parked_counted = len(self._parked)

    def _sweep(self) -> None:
        """Twice a second: who is silent for too long, who has not come back.

        While this process stood still nobody could be heard: such time is nobody's silence.
        """
        now_s = self.now_s()
        stood_still_s = max(0.0, now_s - self._sweep_at_s)
        self._sweep_at_s = now_s + SWEEP_S
        for stream_id, (stream, until_s) in self._parked.items():
            self._parked[stream_id] = (stream, until_s + stood_still_s)
        for stream in list(self._streams.values()):
            stream.last_activity_s = min(now_s, stream.last_activity_s + stood_still_s)
            limit_s = stream.settings.idle_limit_s
            if (
                limit_s is not None
                and stream.id not in self._parked
                and now_s - stream.last_activity_s > limit_s
            ):
                stream.fail(
                    ErrorCode.IDLE,
                    f"Neither sound nor a keep-alive for {limit_s:g} s.",
                    "Send KeepAlive while the speaker is silent.",
                )
        for stream_id, (stream, until_s) in list(self._parked.items()):
            if now_s >= until_s:
                del self._parked[stream_id]
                stream.cancel("lost")
        self._count_parked()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def _wait_empty(self, limit_s: float) -> None:
        if self._streams and limit_s > 0:
            try:
                await asyncio.wait_for(self._empty.wait(), limit_s)
            except TimeoutError:
                return


def new_id(row: int) -> str:
    """A stream's name. Where several processes serve, it begins with the number of the one that has it."""
    name = str(uuid.uuid4())
    return f"{row:02x}{name[2:]}" if row else name
