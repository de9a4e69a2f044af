"""One model on one machine: engine, decode workers, measured capacity, the hop in force. Owns no stream.

Streams belong to a client (a recognizer, here or in another process); it hands windows and frames in and is
told what was heard in them.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from acoustic import catalogue
from acoustic.architectures import ModelConfig
from acoustic.constants import SAMPLE_RATE
from acoustic.errors import AcousticError
from acoustic.files import cache_folder
from acoustic.windows import Window, WindowOutput, WindowPlan
from lm.errors import LanguageError
from lm.search.settings import SearchSettings, settings_from_card
from service.errors import ErrorCode, ServiceError
from service.scheduling.capacity import (
    CapacityModel,
    Costs,
    curve_key,
    load_capacity,
    save_capacity,
)
from service.scheduling.cpu_budget import CpuBudget, busy_s, cpu_quota, usable_cpus
from service.scheduling.decode_pool import DecodePool
from service.scheduling.decode_worker import DecodeResult, OpenStream
from service.scheduling.engine import Engine
from service.scheduling.process import gather_or_cancel
from service.scheduling.shared_counters import SharedCounters
from service.session.messages import AudioReceived, Configured, EndUtterance, PushFrames, Replay, WindowKey
from service.session.session import Session
from service.session.stream_settings import StreamSettings

if TYPE_CHECKING:
    from acoustic.runtime.backend import Precision
    from service.metrics import Metrics

SWEEP_S = 0.5
"""How often the hop is chosen anew though no stream came or went."""
FIRST_LOOK_S = 0.3
"""So long the machine is watched before the first estimate is told."""
LEARN_S = 10.0
"""Sound that must have been heard before its cost is believed."""
EXPECTED_BATCH = {"cpu": 8, "cuda": 16}
"""Windows heard together when as many streams speak as are promised: those that came during the batch before."""


@dataclass(frozen=True)
class DeviceOptions:
    """How a device uses the machine. None: measured or derived from it at start."""

    precision: "Precision | None" = None
    engine_workers: int | None = None
    decode_workers: int | None = None
    language_model: str | Path | None = "shipped"
    max_streams: int | None = None
    overcommit: bool = False
    """`max_streams` are taken in though fewer were measured to fit."""
    hops_s: tuple[float, ...] = (0.16, 0.32, 0.64, 1.28)
    cache_folder: Path | None = None
    server_processes: int = 1
    """Processes that serve its streams; more than one are not this one."""

    def limit_streams(self, measured: int) -> int:
        """Live streams that are taken in, where so many were measured to fit."""
        if self.max_streams is None:
            return measured
        return self.max_streams if self.overcommit else min(measured, self.max_streams)


class DeviceClient(Protocol):
    """Whoever owns the streams."""

    def window_done(self, stream: str, key: WindowKey, window_done: WindowOutput) -> None:
        """A window was heard."""

    def decoded(self, stream: str, answer: DecodeResult) -> None:
        """The decode worker answered a Push or EndUtterance."""

    def decoder_lost(self, stream: str) -> None:
        """Its decode worker is new: it must be told again."""

    def stream_abandoned(self, stream: str) -> None:
        """Its decode worker died of it, repeatedly."""


class Device(Protocol):
    """What a recognizer needs of a device, be it here or in another process."""

    config: ModelConfig
    plan: WindowPlan
    precision: str

    @property
    def kind(self) -> str:
        """cpu or cuda."""

    async def start(self) -> None:
        """Ready when it returns; ServiceError when it cannot be."""

    async def stop(self) -> None:
        """No more streams of ours."""

    def retire(self) -> None:
        """Another follows under its name."""

    @property
    def alive(self) -> bool:
        """Workers of both kinds work."""

    def pin(self, stream: str, settings: OpenStream) -> None:
        """A stream begins."""

    def submit(self, stream: str, key: WindowKey, window: Window, live: bool, urgent: bool) -> None:
        """A window is ready to be heard."""

    def send(self, stream: str, command: PushFrames | EndUtterance | Replay) -> None:
        """A command for the stream's decode worker."""

    def release(self, stream: str, keys: list[WindowKey]) -> None:
        """The stream is gone, and with it these windows."""

    def pin_hop(self, hop_s: float | None) -> None:
        """Keep to one hop (None: by load)."""


class LocalDevice:
    """The device in this process."""

    def __init__(
        self,
        model: str,
        kind: Literal["cpu", "cuda"],
        options: DeviceOptions,
        metrics: "Metrics",
        counters: SharedCounters,
        client: DeviceClient,
    ) -> None:
        self.model_name, self.options = model, options
        self.kind: str = kind
        self._metrics, self._counters, self._client = metrics, counters, client
        self._cpus = usable_cpus()
        self._cpu_quota = cpu_quota(len(self._cpus))
        self._cpu_budget = CpuBudget(len(self._cpus))
        workers = max(1, int(self._cpu_quota))
        executors = 1 if kind == "cuda" else options.engine_workers or workers
        self.engine = Engine(model, kind, options.precision, executors, metrics, self._window_done)
        words = options.language_model
        self._decode_workers = options.decode_workers or max(1, workers // 2)
        self.decoders = DecodePool(
            None if words in (None, "none") else str(words),
            self._decode_workers,
            metrics,
            self._decoded,
            client.decoder_lost,
            client.stream_abandoned,
        )
        self.capacity: CapacityModel
        self._capacity_key = ""
        self._pinned_hop_s: float | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._current = False
        self._processed_s = self._decode_s = self._loop_s = 0.0
        self._windows = 0

    # ---- life

    async def start(self) -> None:
        """Start the workers, warm and measure them. Returns when streams may come."""
        try:
            # At once: each spends seconds on imports, loading and compiling that the other need not wait for.
            await gather_or_cancel(self.engine.start(), self._start_decoders())
            self.config, self.plan = self.engine.config, self.engine.plan
            self.precision = self.engine.precision
            await self._measure()
        except BaseException:
            await self.decoders.stop()
            await self.engine.stop()
            raise
        self._current = True
        self._loop_s = self._counters.total("loop_s")
        self._look()
        await asyncio.sleep(FIRST_LOOK_S)
        self._sweep()

    def retire(self) -> None:
        """The one that follows under this name speaks for it from now on."""
        self._current = False

    async def stop(self) -> None:
        """End every worker, and keep what was learned of their cost."""
        if self._current:
            self._save_costs()
        self.retire()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.decoders.stop()
        await self.engine.stop()

    @property
    def alive(self) -> bool:
        """Workers of both kinds work."""
        return self.engine.alive and self.decoders.alive

    # ---- what streams ask for

    def pin(self, stream: str, settings: OpenStream) -> None:
        """A stream begins."""
        self.decoders.pin(stream, settings)
        self._publish()

    def submit(self, stream: str, key: WindowKey, window: Window, live: bool, urgent: bool) -> None:
        """A window is ready to be heard."""
        self.engine.submit(stream, key, window, live, urgent)

    def send(self, stream: str, command: PushFrames | EndUtterance | Replay) -> None:
        """A command for the stream's decode worker."""
        self.decoders.send(stream, command)

    def release(self, stream: str, keys: list[WindowKey]) -> None:
        """The stream is gone, and with it these windows."""
        self.engine.forget(stream, keys)
        self.decoders.forget(stream)
        self._publish()

    def pin_hop(self, hop_s: float | None) -> None:
        """Keep to one of the hops whatever the load (None: by load again): for measurements."""
        self._pinned_hop_s = hop_s
        self._publish()

    def _window_done(self, stream: str, key: WindowKey, window_done: WindowOutput) -> None:
        self._processed_s += (
            window_done.span.kept * self.config.frames_per_output / self.config.frames_per_second
        )
        self._windows += 1
        self._client.window_done(stream, key, window_done)

    def _decoded(self, stream: str, answer: DecodeResult) -> None:
        self._decode_s += answer.decode_s
        self._counters.add("work_s", answer.decode_s)
        self._client.decoded(stream, answer)

    # ---- capacity

    async def _start_decoders(self) -> None:
        """As soon as it is known what the model writes, which takes a look at its file and no engine."""
        loop = asyncio.get_running_loop()
        await self.decoders.start(*await loop.run_in_executor(None, alphabet_and_search, self.model_name))

    async def _measure(self) -> None:
        """What is kept of an earlier run, or measured now, with every lane and a decoder at work."""
        options, plan = self.options, self.plan
        folder = options.cache_folder or cache_folder()
        executors = len(self.engine.executors)
        key = curve_key(
            self.model_name,
            self.config,
            plan,
            self.kind,
            self.precision,
            executors,
            options.language_model,
            min(options.server_processes, 2),
        )
        costs = load_capacity(folder, key)
        if costs is None:
            curve = await self.engine.measure(sorted(options.hops_s))
            session_s = session_s_per_s(self.config, plan)
            costs = Costs.guessed(curve, self.decoders.measured_s_per_s, session_s, options.server_processes)
            save_capacity(folder, key, costs)
        self._capacity_key = key
        self.engine.curve = costs.curve
        context = round(
            (plan.left_frames + plan.look_ahead_frames) / self.config.frames_per_second * SAMPLE_RATE
        )
        self.capacity = CapacityModel(
            costs,
            executors,
            self._cpu_quota if self.kind == "cpu" else float("inf"),
            context,
            tuple(sorted(options.hops_s)),
            self._decode_workers,
            batch=EXPECTED_BATCH[self.kind],
            server_processes=options.server_processes,
        )

    def _save_costs(self) -> None:
        folder = self.options.cache_folder or cache_folder()
        save_capacity(folder, self._capacity_key, self.capacity.costs)

    def _sweep(self) -> None:
        self._counters.put("loop_s", time.thread_time())
        self._counters.add("work_s", self.engine.pop_cost_s())
        self.capacity.observe_wait(self.engine.pop_live_wait_s())
        self._look()
        if self._processed_s >= LEARN_S:
            loop_s = self._counters.total("loop_s")
            spent_s = max(0.0, loop_s - self._loop_s)
            self.capacity.costs.observe(self._processed_s, self._windows, self._decode_s, spent_s)
            self._processed_s, self._windows, self._decode_s, self._loop_s = 0.0, 0, 0.0, loop_s
        self._publish()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _look(self) -> None:
        """What others leave to us of the machine, on average since a while."""
        if self.kind == "cpu":
            own_s = self._counters.total("loop_s") + self._counters.total("work_s")
            left = self._cpu_budget.update(time.monotonic(), busy_s(self._cpus), own_s)
            self.capacity.processors = min(self._cpu_quota, left)

    def _publish(self) -> None:
        """The hop in force and what goes with it, to whoever asks."""
        if not self._current:
            return
        counters, name = self._counters, self.model_name
        live = counters.total(f"live:{name}")
        self.engine.live_streams = round(live)
        others = counters.total_of_others("load", name)
        hop_s = self._pinned_hop_s or self.capacity.choose_hop(live, others)
        self.capacity.hop_s = hop_s
        load = self.capacity.load(live, hop_s)
        most = self.options.limit_streams(self.capacity.stream_capacity(others))
        for figure, value in (
            ("hop_s", hop_s),
            ("most", most),
            ("load", load),
            ("waiting", len(self.engine.planner)),
            ("alive", len(self.engine.executors) if self.alive else 0),
        ):
            counters.put(f"{figure}:{name}", float(value))
        self._metrics.hop_s.labels(name).set(hop_s)
        self._metrics.load.labels(name).set(load)
        self._metrics.capacity_streams.labels(name).set(most)


def session_s_per_s(config: ModelConfig, plan: WindowPlan) -> float:
    """Seconds that a bare session takes to take a second of faint noise in, as it comes over a wire; the quickest of
    a few tries."""
    piece = AudioReceived(np.random.default_rng(0).normal(0, 0.01, (1, 1600)).astype(np.float32))
    tries_s = []
    for _ in range(3):
        session = Session(config, plan, StreamSettings())
        session.take(Configured("", ""))
        begin_s = time.thread_time()
        for _ in range(50):
            session.take(piece)
        tries_s.append((time.thread_time() - begin_s) / 5)
    return min(tries_s)


def alphabet_and_search(model: str) -> tuple[str, SearchSettings]:
    """The letters that a model writes, and the search that suits it: from its file or the catalogue."""
    try:
        config, card = catalogue.find_description(model)
        return config.alphabet, settings_from_card(card)
    except (AcousticError, LanguageError, OSError) as error:
        raise ServiceError(ErrorCode.MODEL, str(error)) from None
