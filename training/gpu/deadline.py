"""When a run must end: a time, or a file that holds one and may change while the run goes on."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from training.errors import TrainingError

MARGIN_S = 4.0
"""Training ends so long before the deadline, to write the result."""


@dataclass
class Deadline:
    """In seconds since 1970, as `date +%s` prints them; with `file`, what the file says now."""

    at: float = 0.0
    file: Path | None = None
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.last_s()

    @classmethod
    def after(cls, minutes: float) -> "Deadline":
        """So many minutes from now."""
        return cls(time.time() + 60 * minutes)

    def last_s(self) -> float:
        """When the last step may begin. A file that is unreadable for a moment keeps its last value."""
        if self.file is not None:
            try:
                self.at = float(self.file.read_text())
            except (OSError, ValueError):
                if not self.at:
                    raise TrainingError(
                        f"{self.file} holds no deadline: expected seconds since 1970, as `date +%s` prints them."
                    ) from None
        return self.at - MARGIN_S

    def passed(self) -> bool:
        """True when no step may begin any more."""
        return time.time() > self.last_s()

    def elapsed(self) -> float:
        """The share of the time that is over, 0 to 1."""
        last = self.last_s()
        return 1.0 - max(0.0, last - time.time()) / max(1.0, last - self.began)

    def restart(self) -> None:
        """Count the time from now: what came before the first step is no training."""
        self.began = time.time()
