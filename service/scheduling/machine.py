"""How many processors are left to us: those there are, less what other programs keep busy (as Linux tells)."""

import os
from pathlib import Path

STAT = Path("/proc/stat")
USER, NICE, SYSTEM, IRQ, SOFTIRQ, STEAL = 0, 1, 2, 5, 6, 7
WEIGHT = 0.1
"""Of one look in the average: others are believed in for some seconds."""
LEAST_SHARE = 0.25
"""However busy others are: so much the scheduler gives us in the end."""


def processors() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_s(file: Path = STAT) -> float | None:
    """Processor seconds that the machine has worked since it began; polite programs count only if we are one."""
    try:
        figures = [int(figure) for figure in file.read_text().split("\n", 1)[0].split()[1:]]
        counted = [USER, SYSTEM, IRQ, SOFTIRQ, STEAL, *([NICE] if os.nice(0) > 0 else [])]
        return sum(figures[at] for at in counted) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class Machine:
    """Follows what others use."""

    def __init__(self, processors: float) -> None:
        self.processors = processors
        self.others: float | None = None
        """Processors that others keep busy, on average; None: not known yet."""
        self._last: tuple[float, float, float] | None = None

    def look(self, now_s: float, busy: float | None, own_s: float) -> float:
        """Processors for us, after the machine has worked for `busy` seconds and we for `own_s` of them."""
        if busy is not None and self._last is not None and now_s > self._last[0]:
            then_s, busy_then, own_then_s = self._last
            share = ((busy - busy_then) - (own_s - own_then_s)) / (now_s - then_s)
            share = min(self.processors, max(0.0, share))
            self.others = share if self.others is None else self.others + WEIGHT * (share - self.others)
        if busy is not None:
            self._last = (now_s, busy, own_s)
        return max(LEAST_SHARE * self.processors, self.processors - (self.others or 0.0))
