"""Which windows run now: earliest deadline first, live before batch, one shape a batch. Pure.

It is told the time and answers "run these now" or "wake me at t": no clock, no lock, no thread.
"""

import heapq
from dataclasses import dataclass, field, replace
from typing import Protocol

from service.session.messages import WindowKey

MAX_LATE_BATCH_S = 0.5
BUCKETS = (1, 2, 4, 8, 16, 32, 64)


class CostCurve(Protocol):
    """How long a batch takes: measured, see `capacity`."""

    def forward_s(self, windows: int, samples: int) -> float:
        """Seconds for so many windows of so many samples each."""


@dataclass(frozen=True, slots=True)
class WaitingWindow:
    """A window that waits to be run. `samples` is its shape; `hop_s` the new sound in it."""

    stream: str
    key: WindowKey
    samples: int
    ready_s: float
    hop_s: float
    live: bool = True
    urgent: bool = False
    alone: bool = False
    """Suspected of having killed a worker: runs in a batch of its own."""
    deadline_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Batches for idle lanes, and when to ask again though nothing happens (None: when something does)."""

    batches: tuple[tuple[WaitingWindow, ...], ...] = ()
    wake_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlannerLimits:
    """The planner's limits."""

    max_batch: int = 16
    max_live_batch_s: float = 0.25
    """A batch of live windows takes no longer than this (one window always may)."""
    max_file_batch_s: float = 0.08
    """... and one of file windows no longer than this, since a live window may come and wait for it."""
    max_samples: int = 1_600_000
    """Room for a batch's sound."""
    gather_s: float = 0.004
    """How long an idle lane waits for company when company is likely."""


@dataclass
class _Queue:
    """The waiting windows of one shape, by deadline. Entries taken meanwhile are stepped over."""

    heap: list[tuple[float, int]] = field(default_factory=list)
    alive: int = 0


class Planner:
    """Holds the waiting windows. Adding, taking and forgetting one costs O(log waiting)."""

    def __init__(self, limits: PlannerLimits = PlannerLimits()) -> None:
        self.limits = limits
        self._items: dict[int, WaitingWindow] = {}
        self._of_stream: dict[str, set[int]] = {}
        self._queues: dict[tuple[bool, int], _Queue] = {}
        self._file_lock: list[int] = []
        self._last_deadline: dict[str, float] = {}
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def live_queued(self) -> int:
        """Live windows that wait."""
        return sum(queue.alive for (live, _), queue in self._queues.items() if live)

    def add(self, item: WaitingWindow) -> None:
        """A window is ready. Deadlines of one stream are a hop apart, however fast its sound comes: fairness."""
        if item.urgent:
            self._promote(item.stream, item.ready_s)
            deadline = item.ready_s
        else:
            earliest = item.ready_s + item.hop_s
            deadline = max(earliest, self._last_deadline.get(item.stream, 0.0) + item.hop_s)
        self._last_deadline[item.stream] = deadline
        self._enqueue(replace(item, deadline_s=deadline))

    def forget(self, stream: str) -> None:
        """The stream is gone: its waiting windows are dropped."""
        self._last_deadline.pop(stream, None)
        for ticket in self._of_stream.pop(stream, set()):
            item = self._items.pop(ticket)
            self._lost(item)

    def plan(
        self, now_s: float, idle_executors: int, executors: int, live_streams: int, curve: CostCurve
    ) -> Schedule:
        """Batches for the idle lanes. They are taken out: whoever asks runs them."""
        batches: list[tuple[WaitingWindow, ...]] = []
        wake_s: float | None = None
        while idle_executors > len(batches):
            executors_left = idle_executors - len(batches)
            if self._file_lock:
                ticket = self._file_lock.pop()
                if ticket in self._items:
                    batches.append((self._take(ticket),))
                continue
            shape = self._first(live=True)
            if shape is None:
                if live_streams and executors > 1 and executors_left == 1:
                    break  # one lane stays free for live sound
                shape = self._first(live=False)
                if shape is None:
                    break
            elif (
                later := self._gather_until(shape, now_s, executors_left == executors, live_streams)
            ) is not None:
                wake_s = later
                break
            batches.append(self._batch(shape, now_s, executors_left, curve))
        return Schedule(tuple(batches), wake_s)

    # ---- inside

    def _enqueue(self, item: WaitingWindow) -> None:
        self._ticket += 1
        self._items[self._ticket] = item
        self._of_stream.setdefault(item.stream, set()).add(self._ticket)
        if item.alone:
            self._file_lock.append(self._ticket)
            return
        queue = self._queues.setdefault((item.live, item.samples), _Queue())
        queue.alive += 1
        heapq.heappush(queue.heap, (item.deadline_s, self._ticket))

    def _promote(self, stream: str, deadline_s: float) -> None:
        """What an urgent window follows is as urgent."""
        for ticket in sorted(self._of_stream.get(stream, ())):
            item = self._items[ticket]
            if item.deadline_s > deadline_s and not item.alone:
                self._take(ticket)
                self._enqueue(replace(item, deadline_s=deadline_s, urgent=True))

    def _take(self, ticket: int) -> WaitingWindow:
        item = self._items.pop(ticket)
        tickets = self._of_stream[item.stream]
        tickets.discard(ticket)
        if not tickets:
            del self._of_stream[item.stream]
        self._lost(item)
        return item

    def _lost(self, item: WaitingWindow) -> None:
        if item.alone:
            return
        queue = self._queues[item.live, item.samples]
        queue.alive -= 1
        if not queue.alive:
            del self._queues[item.live, item.samples]

    def _first(self, live: bool) -> tuple[bool, int] | None:
        """The shape whose earliest deadline is the earliest."""
        best: tuple[float, tuple[bool, int]] | None = None
        for shape, queue in self._queues.items():
            if shape[0] is live:
                head = self._head(queue)
                if best is None or head < best[0]:
                    best = (head, shape)
        return None if best is None else best[1]

    def _head(self, queue: _Queue) -> float:
        while queue.heap[0][1] not in self._items:
            heapq.heappop(queue.heap)
        return queue.heap[0][0]

    def _gather_until(
        self, shape: tuple[bool, int], now_s: float, all_idle: bool, live_streams: int
    ) -> float | None:
        """Wait a moment for company: only with all lanes idle, nothing urgent, and streams enough for it."""
        queue = self._queues[shape]
        self._head(queue)
        oldest = self._items[queue.heap[0][1]]
        hopeful = live_streams * self.limits.gather_s >= oldest.hop_s
        until = oldest.ready_s + self.limits.gather_s
        if not all_idle or oldest.urgent or not hopeful or now_s >= until:
            return None
        return None if queue.alive >= self.limits.max_batch else until

    def _batch(
        self, shape: tuple[bool, int], now_s: float, executors_left: int, curve: CostCurve
    ) -> tuple[WaitingWindow, ...]:
        live, samples = shape
        queue = self._queues[shape]
        share = -(-queue.alive // executors_left)
        longest = self.limits.max_live_batch_s if live else self.limits.max_file_batch_s
        if live:
            # Who has waited long gains more from fewer turns of the loop than from a short batch.
            self._head(queue)
            waited_s = now_s - self._items[queue.heap[0][1]].ready_s
            longest = max(longest, min(MAX_LATE_BATCH_S, waited_s / 2))
        size = 1
        largest = min(self.limits.max_batch, self.limits.max_samples // max(1, samples))
        for bucket in BUCKETS:
            if bucket > largest or curve.forward_s(bucket, samples) > longest:
                break
            size = bucket
            if bucket >= share:
                break
        taken: list[WaitingWindow] = []
        heap = queue.heap
        while heap and len(taken) < min(size, share):
            ticket = heapq.heappop(heap)[1]
            if ticket in self._items:
                taken.append(self._take(ticket))
        return tuple(taken)
