"""Which clips make which batch in which epoch: a pure function of durations, seed and epoch.

Clips of like length go together (little padding); a batch holds as much sound as the budget allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.errors import TrainingError


@dataclass(frozen=True)
class Budget:
    """What a batch may hold: seconds of sound with padding, and clips; `rows_multiple` makes it divisible."""

    seconds: float
    max_batch_size: int = 4096
    rows_multiple: int = 1


def plan_epoch(
    durations_s: Sequence[float], budget: Budget, seed: int, epoch: int, *, shuffle: bool = True
) -> list[tuple[int, ...]]:
    """The batches of an epoch as indices into the clips; batches of similar length, in random order.

    Every clip appears at most once. Where the number of clips does not divide, the few of a rest that are
    left out differ from epoch to epoch.
    """
    if not durations_s:
        raise TrainingError(
            "There is nothing to train on: no clip is left. Look at the manifest and the limits."
        )
    longest = max(durations_s)
    if longest * budget.rows_multiple > budget.seconds:
        raise TrainingError(
            f"A clip of {longest:.1f} s does not fit {budget.rows_multiple} times into a batch of "
            f"{budget.seconds:.1f} s: raise data.batch_duration_s or lower data.max_duration_s."
        )
    durations = np.asarray(durations_s, np.float64)
    random = np.random.default_rng([seed, epoch])
    # Lengths are compared with a little random change, so that no epoch has the batches of another. Of the model in the
    # box's 33,000 clips three hundredths leave 3 % padding, ten leave 9 %.
    keys = durations * random.uniform(0.97, 1.03, len(durations)) if shuffle else durations
    order = np.argsort(keys, kind="stable")
    batches: list[tuple[int, ...]] = []
    rows: list[int] = []
    widest = 0.0
    for index in order.tolist():
        wider = max(widest, float(durations[index]))
        if rows and (len(rows) >= budget.max_batch_size or wider * (len(rows) + 1) > budget.seconds):
            rows = _emit(batches, rows, budget.rows_multiple)
            wider = max([float(durations[index]), *(float(durations[row]) for row in rows)])
        rows.append(index)
        widest = wider
    _emit(batches, rows, budget.rows_multiple)
    if not batches:
        raise TrainingError(
            f"{len(durations_s)} clips do not fill a batch of {budget.rows_multiple} parts: use fewer "
            "processes or less accumulation, or more data."
        )
    if shuffle:
        batches = [batches[place] for place in random.permutation(len(batches))]
    return batches


def _emit(batches: list[tuple[int, ...]], rows: list[int], multiple: int) -> list[int]:
    """Store a batch of whole multiples; what is left over begins the next one."""
    whole = len(rows) - len(rows) % multiple
    if whole:
        batches.append(tuple(rows[:whole]))
    return rows[whole:]
