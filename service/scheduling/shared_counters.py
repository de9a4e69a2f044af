"""Figures that several processes share: each writes a row of its own, all read the sums. So nothing is locked.

In one process it is a plain array; for several it lies in shared memory, handed over when they are started.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.scheduling.process import context

COMMON = ("sockets", "containers", "loop_s", "work_s")
"""Open sockets and confined decoders; processor seconds that event loops and workers have used."""
PER_MODEL = ("live", "batch", "hop_s", "most", "load", "waiting", "alive")
"""Live channels and file streams, by who serves them; the rest by who owns the device."""


def columns_for(models: Sequence[str]) -> tuple[str, ...]:
    """Everything that is told about these models."""
    return (*COMMON, *(f"{name}:{model}" for model in models for name in PER_MODEL))


class SharedCounters:
    """The figures as one of the processes sees them. Row 0 belongs to whoever owns the devices."""

    def __init__(self, columns: Sequence[str], rows: int = 1, *, shared: bool = False) -> None:
        memory = context.RawArray("d", rows * len(columns)) if shared else None
        self.__setstate__((tuple(columns), rows, memory, 0))

    def for_row(self, row: int) -> "SharedCounters":
        """The same figures, writing into another row."""
        columns, rows, memory, _ = self._state
        other = SharedCounters.__new__(SharedCounters)
        other.__setstate__((columns, rows, memory, row))
        if memory is None:
            other._values = self._values
        return other

    @property
    def rows(self) -> int:
        """Processes that may write."""
        return self._state[1]

    def add(self, name: str, change: float) -> None:
        """Change our figure."""
        self._values[self.row, self._places[name]] += change

    def put(self, name: str, value: float) -> None:
        """Set our figure."""
        self._values[self.row, self._places[name]] = value

    def total(self, name: str) -> float:
        """The sum over all processes."""
        return float(self._values[:, self._places[name]].sum())

    def total_of_others(self, name: str, model: str) -> float:
        """The sum of a figure over every other model."""
        mine = f"{name}:{model}"
        return sum(self.total(each) for each in self._places if each.startswith(f"{name}:") and each != mine)

    def clear(self, row: int) -> None:
        """A process is gone: what it held is free. What it has used stays counted."""
        used = [self._places["loop_s"], self._places["work_s"]]
        kept = self._values[row, used]
        self._values[row] = 0.0
        self._values[row, used] = kept

    # ---- handed to a new process

    def __getstate__(self) -> tuple[tuple[str, ...], int, Any, int]:
        return self._state

    def __setstate__(self, state: tuple[tuple[str, ...], int, Any, int]) -> None:
        self._state = state
        columns, rows, memory, self.row = state
        self._places = {name: at for at, name in enumerate(columns)}
        flat = np.zeros(rows * len(columns)) if memory is None else np.frombuffer(memory, np.float64)
        self._values = flat.reshape(rows, len(columns))
