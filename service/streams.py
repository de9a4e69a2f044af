"""The one facade that every face uses: a Recogniser takes in streams, a Stream takes sound and tells events.

No wire format and no HTTP here. Everything runs on one event loop; the work is done by the engine's and the
decoder's workers.
"""

import asyncio
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from acoustic import catalogue
from acoustic.checkpoint import describe
from acoustic.errors import AcousticError
from acoustic.windows import Heard, with_hop
from lm.errors import LanguageError
from lm.hotwords import spelled
from service.core.clock import SAMPLE_RATE
from service.core.messages import WindowKey
from service.core.session import Session
from service.core.stream_settings import StreamSettings
from service.errors import ServiceError
from service.metrics import Metrics
from service.scheduling.capacity import (
    CapacityModel,
    curve_key,
    default_cache_folder,
    load_curve,
    save_curve,
)
from service.scheduling.decode_worker import Answer, Open
from service.scheduling.decoding import DecodePool
from service.scheduling.engine import Engine
from service.scheduling.process import together
from service.stream import Stream

__all__ = ["Capacity", "Recogniser", "RecogniserOptions", "Stream", "StreamSettings"]

SWEEP_S = 0.5
"""One timer for all streams: idle limits, parked ones, the hop in force."""
FINISH_S = 10.0
"""How long the finals of drained streams are waited for."""
RETRY_S = 5.0
BATCH_STREAMS_PER_LANE = 4
DEFAULT_STREAM = StreamSettings()


@dataclass(frozen=True)
class RecogniserOptions:
    """How the recogniser uses the machine. None: measured or derived from it at start."""

    precision: str | None = None
    engine_workers: int | None = None
    decode_workers: int | None = None
    language_model: str | Path | None = "shipped"
    max_streams: int | None = None
    hops_s: tuple[float, ...] = (0.16, 0.32, 0.64, 1.28)
    resume_s: float = 30.0
    parked_limit: int = 256
    cache_folder: Path | None = None


@dataclass(frozen=True)
class Capacity:
    """What the recogniser carries now and how much it could."""

    streams: int
    streams_most: int
    parked: int
    hop_s: float
    load: float
    waiting_windows: int


class Recogniser:
    """Takes in streams while there is room; owns planner, engine and decode workers."""

    def __init__(
        self,
        model: str,
        device: Literal["cpu", "cuda"] = "cpu",
        options: RecogniserOptions = RecogniserOptions(),
        metrics: Metrics | None = None,
    ) -> None:
        self.model_name = model
        self.options = options
        self.metrics = metrics if metrics is not None else Metrics()
        self.device = device
        self._processors = (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
        lanes = 1 if device == "cuda" else options.engine_workers or self._processors
        self.engine = Engine(model, device, options.precision, lanes, self.metrics, self._heard)
        words = options.language_model
        self._decode_workers = options.decode_workers or max(1, self._processors // 2)
        self.decoders = DecodePool(
            None if words in (None, "none") else str(words),
            self._decode_workers,
            self.metrics,
            lambda stream, answer: self._answered(stream, answer),
            lambda stream: self._streams[stream].worker_lost() if stream in self._streams else None,
            self._given_up,
        )
        self._capacity: CapacityModel
        self._hops: dict[float, int] = {}
        self._streams: dict[str, Stream] = {}
        self._parked: dict[str, tuple[Stream, float]] = {}
        self._parked_counted = 0
        self._held_hop_s: float | None = None
        self._live_channels = 0
        self._batch_streams = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._started = False
        self._draining = False

    # ---- life

    async def start(self) -> None:
        """Start the workers, warm and measure them. Returns when streams may come."""
        try:
            # At once: each spends seconds on imports, loading and compiling that the other need not wait for.
            await together(self.engine.start(), self._start_decoders())
            config, plan = self.engine.config, self.engine.plan
            hops = {hop_s: with_hop(config, plan, hop_s).hop_frames for hop_s in sorted(self.options.hops_s)}
            self._hops = hops
            await self._measure()
        except BaseException:
            await self.decoders.stop()
            await self.engine.stop()
            raise
        self._started = True
        self._empty.set()
        self.metrics.model.labels(self.model_name, config.name, self.device, self.engine.precision).set(1)
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
            await self.decoders.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.engine.stop()

    @property
    def ready(self) -> bool:
        """Warm, workers of both kinds alive, and not draining."""
        return self._started and not self._draining and self.engine.alive and self.decoders.alive

    @property
    def draining(self) -> bool:
        """No more streams are taken in."""
        return self._draining

    # ---- streams

    def open(self, settings: StreamSettings = DEFAULT_STREAM) -> Stream:
        """A new stream; ServiceError "capacity" (with retry_after_s) when full, "draining" when stopping."""
        self._check_room(settings)
        hotwords = self._checked_hotwords(settings)
        session = Session(
            self.engine.config, with_hop(self.engine.config, self.engine.plan, max(self._hops)), settings
        )
        stream = Stream(str(uuid.uuid4()), settings, session, self)
        self._streams[stream.id] = stream
        self._count(settings, +1)
        self.metrics.sessions.inc()
        self.decoders.pin(stream.id, Open(settings.n_best, hotwords, settings.decoder))
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
                "resume",
                "There is no such stream to go on with: unknown, expired, or it misses what you have not seen.",
                "Open a new stream and send the sound again from where your last final ended.",
            )
        del self._parked[stream_id]
        self._count_parked()
        self.metrics.sessions_resumed.inc()
        stream.unpark()
        return stream

    def hold_hop(self, hop_s: float | None) -> None:
        """Keep to one of the hops whatever the load (None: by load again): for measurements."""
        if hop_s is not None and hop_s not in self._hops:
            raise ServiceError("hop", f"No hop of {hop_s} s.", f"There are {sorted(self._hops)}.")
        self._held_hop_s = hop_s
        self._choose_hop()

    def capacity(self) -> Capacity:
        """Room and load now."""
        hop_s = self._capacity.hop_s
        return Capacity(
            len(self._streams),
            self._streams_most(),
            len(self._parked),
            hop_s,
            self._capacity.load(self._live_channels, hop_s),
            len(self.engine.planner),
        )

    # ---- what streams and workers ask of the house

    def now_s(self) -> float:
        """The one clock."""
        return asyncio.get_running_loop().time()

    def hop_frames(self, widest: bool) -> int:
        """The hop of windows to come: the one in force, or the widest for files and for who is behind."""
        wide = widest and self._held_hop_s is None
        return self._hops[max(self._hops) if wide else self._capacity.hop_s]

    def closed(self, stream: Stream, reason: str) -> None:
        """A stream has told Closed: its slot is free. Counted here and nowhere else."""
        if self._streams.pop(stream.id, None) is None:
            return
        self._count(stream.settings, -1)
        self.metrics.sessions_closed.labels(code=reason).inc()
        if not self._streams:
            self._empty.set()

    def _heard(self, stream: str, key: WindowKey, heard: Heard) -> None:
        if stream in self._streams:
            self._streams[stream].heard(key, heard)

    def _answered(self, stream: str, answer: Answer) -> None:
        if stream in self._streams:
            session = self._streams[stream].session
            before = session.processed_samples
            self._streams[stream].answered(answer)
            sound_s = session.settings.channels * (session.processed_samples - before) / SAMPLE_RATE
            self._capacity.observe_decode(answer.decode_s, sound_s)

    def _given_up(self, stream: str) -> None:
        if stream in self._streams:
            self._streams[stream].fail(
                "decoder",
                "The words of this stream could not be searched: its worker died of it, repeatedly.",
            )

    # ---- inside

    async def _start_decoders(self) -> None:
        """As soon as the model's alphabet is known, which takes a look at its file and no engine."""

        def look() -> str:
            try:
                path = catalogue.locate(self.model_name)
                config = describe(path)[0] if path else catalogue.find(self.model_name).config
            except (AcousticError, OSError) as error:
                raise ServiceError("model", str(error)) from None
            return config.alphabet

        await self.decoders.start(await asyncio.get_running_loop().run_in_executor(None, look))

    async def _measure(self) -> None:
        config, plan, options = self.engine.config, self.engine.plan, self.options
        folder = options.cache_folder or default_cache_folder()
        lanes = len(self.engine.lanes)
        key = curve_key(self.model_name, config, plan, self.device, self.engine.precision, lanes)
        curve = load_curve(folder, key)
        if curve is None:
            curve = await self.engine.measure(tuple(self._hops))
            save_curve(folder, key, curve)
        self.engine.curve = curve
        context = round((plan.left_frames + plan.look_ahead_frames) / config.frames_per_second * 16000)
        self._capacity = CapacityModel(
            curve,
            lanes,
            self._processors if self.device == "cpu" else float("inf"),
            context,
            tuple(self._hops),
            self._decode_workers,
            batch=1 if self.device == "cpu" else 16,
        )

    def _check_room(self, settings: StreamSettings) -> None:
        if not self._started or self._draining:
            raise ServiceError(
                "draining", "The server takes no new streams.", "Try another server, or this one later.",
                retry_after_s=RETRY_S,
            )  # fmt: skip
        if not 1 <= settings.channels <= 8:
            raise ServiceError("channels", f"{settings.channels} channels.", "A stream has 1 to 8.")
        if settings.priority == "live":
            full = self._live_channels + settings.channels > self._streams_most()
        else:
            full = self._batch_streams >= BATCH_STREAMS_PER_LANE * max(1, len(self.engine.lanes))
        if full:
            raise ServiceError(
                "capacity",
                f"All {self._streams_most()} streams of this server are taken.",
                "Try again soon, or another server.",
                retry_after_s=RETRY_S,
            )

    def _checked_hotwords(self, settings: StreamSettings) -> tuple[object, ...]:
        from lm.search_settings import SearchSettings

        try:
            hotwords = spelled(settings.hotwords, self.engine.config.alphabet)
            SearchSettings(n_best=settings.n_best, hotwords=hotwords)
        except LanguageError as error:
            raise ServiceError("hotwords", str(error)) from None
        return hotwords

    def _streams_most(self) -> int:
        return self.options.max_streams or self._capacity.streams_most()

    def _count(self, settings: StreamSettings, change: int) -> None:
        if settings.priority == "live":
            self._live_channels += change * settings.channels
        else:
            self._batch_streams += change
        self._empty.clear()
        self.engine.live_streams = self._live_channels
        self.metrics.sessions_open.inc(change)
        self._choose_hop()

    def _count_parked(self) -> None:
        """By its change, since several recognisers share the gauge."""
        self.metrics.sessions_parked.inc(len(self._parked) - self._parked_counted)
        self._parked_counted = len(self._parked)

    def _choose_hop(self) -> None:
        hop_s = self._held_hop_s or self._capacity.choose_hop(self._live_channels)
        self._capacity.hop_s = hop_s
        if self._draining:
            return  # the one that follows under this name speaks for it now
        name = self.model_name
        self.metrics.hop_s.labels(name).set(hop_s)
        self.metrics.load.labels(name).set(self._capacity.load(self._live_channels, hop_s))
        self.metrics.capacity_streams.labels(name).set(self._streams_most())

    def _sweep(self) -> None:
        """Twice a second: who is silent for too long, who has not come back, which hop the load allows."""
        now_s = self.now_s()
        for stream in list(self._streams.values()):
            limit_s = stream.settings.idle_limit_s
            if limit_s is not None and stream.id not in self._parked and now_s - stream.last_life_s > limit_s:
                stream.fail(
                    "idle",
                    f"Neither sound nor a keep-alive for {limit_s:g} s.",
                    "Send KeepAlive while the speaker is silent.",
                )
        for stream_id, (stream, until_s) in list(self._parked.items()):
            if now_s >= until_s:
                del self._parked[stream_id]
                stream.cancel("lost")
        self._count_parked()
        self._capacity.observe_wait(self.engine.take_live_wait_s())
        self._choose_hop()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def _wait_empty(self, limit_s: float) -> None:
        if self._streams and limit_s > 0:
            try:
                await asyncio.wait_for(self._empty.wait(), limit_s)
            except TimeoutError:
                return
