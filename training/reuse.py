"""Altered sound used more than once: where altering it costs as much as learning from it, a batch comes back, each time
varied anew in its features, while newer ones come between.
"""

import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from training.errors import TrainingError

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Reuse:
    """Each batch is used `uses` times, with `apart` new batches between two of its uses."""

    uses: int = 1
    apart: int = 64

    def __post_init__(self) -> None:
        if self.uses < 1 or self.apart < 0:
            raise TrainingError(
                f"data.uses is {self.uses} and data.uses_apart {self.apart}: a batch is used at least once, and there "
                "cannot be fewer than no new ones between its uses."
            )

    @property
    def kept(self) -> int:
        """How many batches are made before the first step, and kept."""
        return (self.uses - 1) * self.apart + 1

    def batch_of(self, step: int) -> tuple[int, int]:
        """The batch that a step takes, and which use of it that is (0 is the first). Batches follow one another from 0
        on; those of a run's first steps are used less often."""
        oldest, use = divmod(step, self.uses)
        return oldest + (self.uses - 1 - use) * self.apart, use


def reused(
    batches: Callable[[int], Iterator[Given]], work: Callable[[Given], Made], reuse: Reuse, first_step: int
) -> Generator[tuple[Made, int]]:
    """For each step from `first_step` on what `work` made of its batch, and which use of it this is.

    `batches` gives the batches from a number on. Each is worked on once; a run that is resumed works once more on those
    that it still uses, and so goes on as if it had never stopped.
    """
    oldest = newest = first_step // reuse.uses
    fresh = batches(oldest)
    kept: dict[int, Made] = {}
    try:
        for step in itertools.count(first_step):
            wanted, use = reuse.batch_of(step)
            while newest <= wanted:
                kept[newest] = work(next(fresh))
                newest += 1
            yield kept[wanted], use
            while oldest <= step // reuse.uses - (use < reuse.uses - 1):
                del kept[oldest]
                oldest += 1
    finally:
        if isinstance(fresh, Generator):
            fresh.close()
