"""Batches of a few fixed shapes: clips of similar length together, each row padded to the length of its shape.

A GPU captures each shape as CUDA graphs. Where shapes may vary, `sampler.py` makes batches with less padding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from acoustic.constants import SAMPLE_RATE
from training.augment.config import AugmentConfig
from training.augment.speed import STEPS

MAX_CLIP_S = (3.0, 4.0, 5.0, 6.5, 8.5, 12.0, 17.0)
"""The longest clip of each shape: a tenth of a batch is padding."""
AUGMENTED_MULTIPLE = 4000
"""Augmented rows are a multiple of so many samples long."""
MIN_ROWS = 2


@dataclass(frozen=True)
class BatchShape:
    """A batch of `rows` clips of at most `samples`; speed perturbation makes them up to `augmented_samples` long."""

    samples: int
    rows: int
    augmented_samples: int


def batch_shapes(
    augment: AugmentConfig, batch_duration_s: float, max_duration_s: float, max_rows: int = 4096
) -> tuple[BatchShape, ...]:
    """The shapes of a run, from short to long; each holds `batch_duration_s` of audio."""
    slowest = round(STEPS / min(1.0, *augment.speed_range)) / STEPS if augment.speed else 1.0
    shapes = []
    for clip_s in (*(limit for limit in MAX_CLIP_S if limit < max_duration_s), max_duration_s):
        samples = math.ceil(clip_s * SAMPLE_RATE)
        augmented = math.ceil(samples * slowest / AUGMENTED_MULTIPLE) * AUGMENTED_MULTIPLE
        rows = max(MIN_ROWS, min(max_rows, int(batch_duration_s // clip_s)))
        shapes.append(BatchShape(samples, rows, augmented))
    return tuple(shapes)


def shape_of(duration_s: float, shapes: Sequence[BatchShape]) -> int:
    """The number of the smallest shape that holds a clip, or of the largest shape."""
    samples = duration_s * SAMPLE_RATE
    return next((number for number, shape in enumerate(shapes) if samples <= shape.samples), len(shapes) - 1)


def plan_shaped_epoch(
    durations_s: Sequence[float], shapes: Sequence[BatchShape], seed: int, epoch: int, parts: int = 1
) -> list[tuple[int, ...]]:
    """The batches of an epoch as indices into the clips, each of `parts` full shapes and in random order.

    On average each clip appears once: a shape whose clips do not fill whole batches has one batch more or less at
    random, and repeats or omits some clips.
    """
    random = np.random.default_rng([seed, epoch])
    numbers = np.array([shape_of(duration, shapes) for duration in durations_s])
    batches: list[tuple[int, ...]] = []
    fullest: tuple[int, ...] = ()
    for number in np.unique(numbers).tolist():
        clips, rows = np.nonzero(numbers == number)[0], shapes[number].rows * parts
        count = int(len(clips) / rows + random.random())
        repeats = -(-max(1, count) * rows // len(clips))
        order = np.concatenate([random.permutation(clips) for _ in range(repeats)]).tolist()
        batches += [tuple(order[place : place + rows]) for place in range(0, count * rows, rows)]
        fullest = max(fullest, tuple(order[:rows]), key=len)
    batches = batches or [fullest]
    return [batches[place] for place in random.permutation(len(batches))]
