"""Runs windows: the planner says which, lanes run them, a lost lane is replaced and its windows run again.

Everything here is on the event loop and returns at once. Sessions, decoders and admission are elsewhere.
"""

import asyncio
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from acoustic.config import ModelConfig
from acoustic.windows import Heard, StreamWindows, Window, WindowPlan, with_hop
from service.core.messages import WindowKey
from service.errors import ErrorCode, ServiceError
from service.scheduling.capacity import Curve
from service.scheduling.engine_worker import Crashed, Done
from service.scheduling.lanes import Lane, ProcessLane, ThreadLane
from service.scheduling.planner import Planner, Rules, Waiting
from service.scheduling.process import together

if TYPE_CHECKING:
    from acoustic.runtime.backend import Device, Precision
    from service.metrics import Metrics

log = logging.getLogger("silica.engine")

OVERDUE_S = 15.0
"""A batch that takes so long, and fifty times what was expected, has hung its worker."""
GPU_RULES = Rules(largest_batch=64, longest_batch_s=0.05)
CPU_RULES = Rules(largest_batch=16, longest_live_s=0.04, longest_batch_s=0.04)
"""On a CPU thread company makes a window cheaper by a sixth (FP32) to two fifths (INT8), but all wait for the last
one: short batches."""
MOST_TRIES = 3
"""A window lost so often, the last times alone, is given up: its stream fails, no other."""
LONGEST_PAUSE_S = 10.0


@dataclass
class Task:
    """A window on its way through the engine."""

    waiting: Waiting
    window: Window
    tries: int = 0


@dataclass
class Running:
    """A batch in a lane."""

    number: int
    tasks: list[Task]
    began_s: float
    overdue_s: float
    probe: "asyncio.Future[float] | None" = None


class Engine:
    """Lanes and the planner that feeds them."""

    def __init__(
        self,
        model: str,
        device: "Device",
        precision: "Precision | None",
        lanes: int,
        metrics: "Metrics",
        on_heard: Callable[[str, WindowKey, Heard], None],
    ) -> None:
        self.curve = Curve()
        self.live_streams = 0
        """Set by whoever opens streams: the planner keeps a lane free for them."""
        self._live_waits_s: list[float] = []
        self._cost_s = 0.0
        self._arguments = (model, device, precision)
        self._kind = ThreadLane if device == "cuda" else ProcessLane
        self._wanted = lanes
        self._metrics = metrics
        self._on_heard = on_heard
        self.planner = Planner(GPU_RULES if device == "cuda" else CPU_RULES)
        self.lanes: list[Lane] = []
        self._running: dict[Lane, Running] = {}
        self._tasks: dict[tuple[str, WindowKey], Task] = {}
        self._number = 0
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._restarts: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.config: ModelConfig
        self.plan: WindowPlan
        self.precision = ""

    # ---- life

    async def start(self) -> None:
        """Start every lane; ServiceError when the model cannot be opened."""
        lanes = [self._kind(*self._arguments, self._done, self._lost) for _ in range(self._wanted)]
        try:
            ready = await together(*(lane.start() for lane in lanes))
        except BaseException:
            for lane in lanes:
                await lane.close()
            raise
        self.lanes = list(lanes)
        self.config, self.plan, self.precision = ready[0].config, ready[0].plan, ready[0].precision

    async def stop(self) -> None:
        """End every lane; what waits is dropped."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._restarts):
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        for lane in self.lanes:
            await lane.close()
        self.lanes = []

    @property
    def alive(self) -> bool:
        """At least one lane works."""
        return bool(self.lanes)

    async def measure(self, hops_s: Sequence[float]) -> Curve:
        """Forward times of narrow and wide windows, alone and in company, with every lane at work."""
        points: list[tuple[int, int, float]] = []
        for hop_s in {hops_s[0], hops_s[-1]}:
            window = noise_window(self.config, with_hop(self.config, self.plan, hop_s))
            for windows in (1, 4):
                times = []
                for _ in range(6):
                    probes = [self._probe(lane, [window] * windows) for lane in self.lanes if not lane.busy]
                    times.append(max(await asyncio.gather(*probes)))
                # The first run warms the backend; of the others as many were quicker as were slower.
                points.append((windows, window.samples.size, statistics.median(times[1:])))
        return Curve.through(points)

    # ---- work

    def submit(self, stream: str, key: WindowKey, window: Window, live: bool, urgent: bool) -> None:
        """A window is ready; `on_heard` follows, unless the stream is forgotten first."""
        now_s = asyncio.get_running_loop().time()
        every = self.config.frames_per_output / self.config.frames_per_second
        waiting = Waiting(
            stream, key, window.samples.size, now_s, max(every, window.span.kept * every), live, urgent
        )
        self._tasks[stream, key] = Task(waiting, window)
        self.planner.add(waiting)
        self.pump_soon()

    def take_live_wait_s(self) -> float | None:
        """Mean wait of the live windows that began since this was last asked; None: there were none."""
        waits_s, self._live_waits_s = self._live_waits_s, []
        return sum(waits_s) / len(waits_s) if waits_s else None

    def take_cost_s(self) -> float:
        """Processor seconds that the lanes have used since this was last asked."""
        cost_s, self._cost_s = self._cost_s, 0.0
        return cost_s

    def forget(self, stream: str, keys: Sequence[WindowKey]) -> None:
        """The stream is gone: what waits is dropped, what runs is not told."""
        self.planner.forget(stream)
        for key in keys:
            self._tasks.pop((stream, key), None)

    def pump_soon(self) -> None:
        """Plan once in this turn of the loop, however many windows became ready in it."""
        if not self._pumping and not self._stopped:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._stopped:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for lane, running in list(self._running.items()):
            if now_s >= running.overdue_s:
                log.warning("an engine worker has not answered for %.0f s: replaced", now_s - running.began_s)
                running.overdue_s = float("inf")
                lane.kill()
        idle = [lane for lane in self.lanes if not lane.busy]
        plan = self.planner.plan(now_s, len(idle), self._wanted, self.live_streams, self.curve)
        for lane, batch in zip(idle, plan.batches, strict=False):
            self._run(lane, batch, now_s)
        wakes = [running.overdue_s for running in self._running.values()]
        if plan.wake_s is not None:
            wakes.append(plan.wake_s)
        self._wake_at(min(wakes, default=float("inf")))

    def _wake_at(self, when_s: float) -> None:
        """One timer for the whole engine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when_s != float("inf"):
            self._timer = asyncio.get_running_loop().call_at(when_s, self._pump)

    def _run(self, lane: Lane, batch: Sequence[Waiting], now_s: float) -> None:
        tasks = [self._tasks[item.stream, item.key] for item in batch]
        self._number += 1
        samples = batch[0].samples
        patience_s = max(OVERDUE_S, 50 * self.curve.forward_s(len(batch), samples))
        self._running[lane] = Running(self._number, tasks, now_s, now_s + patience_s)
        self._metrics.batch_size.observe(len(batch))
        for item in batch:
            wait_s = max(0.0, now_s - item.ready_s)
            self._metrics.queue_wait_s.observe(wait_s)
            if item.live:
                self._live_waits_s.append(wait_s)
        lane.run(self._number, [task.window for task in tasks])

    async def _probe(self, lane: Lane, windows: list[Window]) -> float:
        now_s = asyncio.get_running_loop().time()
        self._number += 1
        running = Running(self._number, [], now_s, now_s + OVERDUE_S * 4)
        running.probe = asyncio.get_running_loop().create_future()
        self._running[lane] = running
        lane.run(self._number, windows)
        return await running.probe

    # ---- what lanes say

    def _done(self, lane: Lane, done: Done | Crashed) -> None:
        running = self._running.pop(lane, None)
        if running is None or running.number != done.number:
            return
        if isinstance(done, Crashed):
            log.error("the backend failed on a batch of %d: %s", len(running.tasks), done.message)
            if running.probe is not None:
                running.probe.set_exception(
                    ServiceError(ErrorCode.ENGINE, f"The model does not run: {done.message}")
                )
            self._again(running.tasks, done.message)
        elif running.probe is not None:
            running.probe.set_result(done.cost_s)
        else:
            first = running.tasks[0].waiting
            self.curve.observe(len(running.tasks), first.samples, done.cost_s)
            self._metrics.forward_s.observe(done.forward_s)
            if done.features_s is not None:
                self._metrics.features_s.observe(done.features_s)
            self._cost_s += done.cost_s
            for task, heard in zip(running.tasks, done.heard, strict=True):
                self._tell(task, heard)
        self.pump_soon()

    def _tell(self, task: Task, heard: Heard) -> None:
        name = (task.waiting.stream, task.waiting.key)
        if self._tasks.get(name) is task:
            del self._tasks[name]
            if heard.error is not None:
                self._metrics.windows_non_finite.inc()
            self._on_heard(task.waiting.stream, task.waiting.key, heard)

    def _again(self, tasks: Sequence[Task], reason: str) -> None:
        """Their batch was lost: each runs again, alone, since one of them may be what did it."""
        for task in tasks:
            if self._tasks.get((task.waiting.stream, task.waiting.key)) is not task:
                continue
            task.tries += 1
            if task.tries >= MOST_TRIES:
                nothing = np.zeros((0, self.config.classes), np.float32)
                self._tell(task, Heard(task.window.span, nothing, None, f"the model failed on it ({reason})"))
                continue
            old = task.waiting
            task.waiting = Waiting(
                old.stream, old.key, old.samples, old.ready_s, old.hop_s, old.live, urgent=False, alone=True
            )
            self.planner.add(task.waiting)

    def _lost(self, lane: Lane) -> None:
        running = self._running.pop(lane, None)
        if lane in self.lanes:
            self.lanes.remove(lane)
        if self._stopped:
            return
        log.warning("an engine worker is lost; another is starting")
        self._metrics.worker_restarts.labels(kind="engine").inc()
        restart = asyncio.get_running_loop().create_task(self._replace())
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)
        if running is not None:
            if running.probe is not None and not running.probe.done():
                running.probe.set_exception(
                    ServiceError(ErrorCode.ENGINE, "An engine worker died while it was measured.")
                )
            self._again(running.tasks, "its worker died")
        self.pump_soon()

    async def _replace(self) -> None:
        pause_s = 0.0
        while not self._stopped:
            lane = self._kind(*self._arguments, self._done, self._lost)
            try:
                await lane.start()
            except ServiceError as error:
                await lane.close()
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2 + 0.5)
                log.error("an engine worker does not start: %s", error)
                await asyncio.sleep(pause_s)
            except BaseException:
                await lane.close()
                raise
            else:
                self.lanes.append(lane)
                self.pump_soon()
                return


def noise_window(config: ModelConfig, plan: WindowPlan) -> Window:
    """A window with its whole left context, of faint noise; numbered 0, since it has no stream to remember."""
    stream = StreamWindows(config, plan)
    seconds = (plan.frames + plan.left_frames + 2 * plan.hop_frames) / config.frames_per_second + 0.1
    noise = np.random.default_rng(0).normal(0, 0.05, round(seconds * config.features.sample_rate))
    window = stream.push(noise.astype(np.float32))[-1]
    return replace(window, span=replace(window.span, index=0))
