"""How many processors are left to us: those that we may use, less what others keep busy, as Linux tells."""

import os
from pathlib import Path

STAT = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
USER, NICE, SYSTEM, IRQ, SOFTIRQ, STEAL = 0, 1, 2, 5, 6, 7
WEIGHT = 0.1
"""Of one look in the average: others are believed in for some seconds."""
MIN_SHARE = 0.25
"""However busy others are: so much the scheduler gives us in the end."""


def usable_cpus() -> set[int]:
    """The numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota(processors: int, file: Path = QUOTA) -> float:
    """How many of so many a container may use at a time (`docker run --cpus`), as its quota says."""
    try:
        quota, period = file.read_text().split()
        return min(float(processors), int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # "max": no quota
        return float(processors)


def busy_s(of: set[int], file: Path = STAT) -> float | None:
    """Seconds that these processors have worked since the machine began; polite programs count only if we are one."""
    counted = [USER, SYSTEM, IRQ, SOFTIRQ, STEAL, *([NICE] if os.nice(0) > 0 else [])]
    wanted = {f"cpu{number}" for number in of}
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
        ticks = [int(line[1 + at]) for line in lines if line and line[0] in wanted for at in counted]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None
    except (OSError, ValueError, IndexError):
        return None


class CpuBudget:
    """Follows what others use."""

    def __init__(self, processors: float) -> None:
        self.processors = processors
        self.others: float | None = None
        """Processors that others keep busy, on average; None: not known yet."""
        self._last: tuple[float, float, float] | None = None

    def update(self, now_s: float, busy: float | None, own_s: float) -> float:
        """Processors for us, after the machine has worked for `busy` seconds and we for `own_s` of them."""
        if busy is not None and self._last is not None and now_s > self._last[0]:
            then_s, busy_then, own_then_s = self._last
            share = ((busy - busy_then) - (own_s - own_then_s)) / (now_s - then_s)
            share = min(self.processors, max(0.0, share))
            self.others = share if self.others is None else self.others + WEIGHT * (share - self.others)
        if busy is not None:
            self._last = (now_s, busy, own_s)
        return max(MIN_SHARE * self.processors, self.processors - (self.others or 0.0))
