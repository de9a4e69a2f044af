"""How many processors the server can use: those it may run on, less what other programs use (Linux)."""

import os
from pathlib import Path

STAT = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
USER, NICE, SYSTEM, IRQ, SOFTIRQ, STEAL = 0, 1, 2, 5, 6, 7
SMOOTHING = 0.1
"""Weight of one sample in the moving average: a time constant of some seconds."""
MIN_SHARE = 0.25
"""Share of the processors that the OS scheduler gives the server however busy other programs are."""


def usable_cpus() -> set[int]:
    """Numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota(processors: int, file: Path = QUOTA) -> float:
    """Processors that the container's quota allows (`docker run --cpus`), at most `processors`."""
    try:
        quota, period = file.read_text().split()
        return min(float(processors), int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # "max": no quota
        return float(processors)


def busy_cpu_s(cpus: set[int], file: Path = STAT) -> float | None:
    """Seconds that these processors have been busy since boot; niced programs count only if this one is niced."""
    fields = [USER, SYSTEM, IRQ, SOFTIRQ, STEAL, *([NICE] if os.nice(0) > 0 else [])]
    wanted = {f"cpu{number}" for number in cpus}
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
        ticks = [int(line[1 + at]) for line in lines if line and line[0] in wanted for at in fields]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None
    except (OSError, ValueError, IndexError):
        return None


class CpuBudget:
    """Tracks the processor time that other programs use."""

    def __init__(self, processors: float) -> None:
        self.processors = processors
        self.used_by_others: float | None = None
        """Average processors used by other programs; None: not known yet."""
        self._last: tuple[float, float, float] | None = None

    def update(self, now_s: float, busy_s: float | None, own_s: float) -> float:
        """Processors left for the server, given total busy seconds of the machine and of the server so far."""
        if busy_s is not None and self._last is not None and now_s > self._last[0]:
            then_s, busy_then, own_then_s = self._last
            share = ((busy_s - busy_then) - (own_s - own_then_s)) / (now_s - then_s)
            share = min(self.processors, max(0.0, share))
            self.used_by_others = (
                share
                if self.used_by_others is None
                else self.used_by_others + SMOOTHING * (share - self.used_by_others)
            )
        if busy_s is not None:
            self._last = (now_s, busy_s, own_s)
        return max(MIN_SHARE * self.processors, self.processors - (self.used_by_others or 0.0))
