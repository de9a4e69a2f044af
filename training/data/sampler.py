"""Batch sampling: which clips form which batch, as a pure function of durations, seed and epoch.

Clips of similar length share a batch, so that there is little padding; a batch is filled up to the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.errors import TrainingError


@dataclass(frozen=True)
class Budget:
    """Limits of a batch: seconds of audio including padding, and number of clips, a multiple of `rows_multiple`."""

    duration_s: float
    max_batch_size: int = 4096
    rows_multiple: int = 1


def plan_epoch(
    durations_s: Sequence[float], budget: Budget, seed: int, epoch: int, *, shuffle: bool = True
) -> list[tuple[int, ...]]:
    """The batches of an epoch as indices of clips, in random order.

    Every clip appears at most once. Where the number of clips is not a multiple of `rows_multiple`, the few that are
    left out differ from epoch to epoch.
    """
    if not durations_s:
        raise TrainingError("There are no clips to train on: check the manifest and the duration limits.")
    longest = max(durations_s)
    if longest * budget.rows_multiple > budget.duration_s:
        raise TrainingError(
            f"A clip of {longest:.1f} s does not fit {budget.rows_multiple} times into a batch of "
            f"{budget.duration_s:.1f} s: raise data.batch_duration_s or lower data.max_duration_s."
        )
    durations = np.asarray(durations_s, np.float64)
    random = np.random.default_rng([seed, epoch])
    # Durations are jittered before sorting, so that batches differ between epochs. With 33,000 clips, a jitter of 3 %
    # costs 3 % padding, and 10 % costs 9 %.
    keys = durations * random.uniform(0.97, 1.03, len(durations)) if shuffle else durations
    order = np.argsort(keys, kind="stable")
    batches: list[tuple[int, ...]] = []
    rows: list[int] = []
    widest = 0.0
    for index in order.tolist():
        wider = max(widest, float(durations[index]))
        if rows and (len(rows) >= budget.max_batch_size or wider * (len(rows) + 1) > budget.duration_s):
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
        batches = [batches[index] for index in random.permutation(len(batches))]
    return batches


def _emit(batches: list[tuple[int, ...]], rows: list[int], multiple: int) -> list[int]:
    """Store the rows up to a multiple as a batch; return the rest, which starts the next batch."""
    whole = len(rows) - len(rows) % multiple
    if whole:
        batches.append(tuple(rows[:whole]))
    return rows[whole:]
