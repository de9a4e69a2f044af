"""What a converter or a program cut off at full scale is drawn anew: peaks in the place of plateaus.

Sound that was not cut off passes as it is, at once. Where it was, it waits for the two samples behind the plateau. How
the sound is cut into pieces changes no sample.
"""

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

FULL_SCALE = 0.999
HIGHEST = 4.0
LONGEST_S = 0.0025
"""What stays up for longer is no peak of a voice, and is left alone."""
_BESIDE = 2
"""Samples on each side of a plateau: the peak is the cubic through these four."""


class Unclipped:
    """Sound [channels, n] as it was before it was cut off, of one stream."""

    def __init__(self, rate: int, channels: int) -> None:
        self.longest = round(rate * LONGEST_S)
        self._nothing = np.zeros((channels, 0), np.float32)
        self._before = self._waiting = self._nothing

    def push(self, samples: Samples, last: bool = False) -> Samples:
        """What is certain; with `last` everything, and what still comes begins anew."""
        heard: Samples = np.concatenate([self._before, self._waiting, samples], axis=1)
        given, end = self._before.shape[1], heard.shape[1]
        told = heard
        for channel, row in enumerate(heard):
            begins, ends = _plateaus(row)
            short = ends - begins <= self.longest
            begins, ends = begins[short], ends[short]
            open_ones = begins[ends + _BESIDE > len(row)]
            if len(open_ones) and not last:
                end = min(end, int(open_ones[0]))
            peaks = (begins >= _BESIDE) & (ends + _BESIDE <= len(row))
            if peaks.any():
                told = told.copy() if told is heard else told
                _draw(told[channel], row, begins[peaks], ends[peaks])
        # Long enough to tell how long a plateau has been lying there.
        kept = max(0, end - self.longest - _BESIDE)
        self._before, self._waiting = heard[:, kept:end].copy(), heard[:, end:].copy()
        if last:
            self._before = self._waiting = self._nothing
        return told[:, given:end]


def _plateaus(row: Samples) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Where runs of samples at full scale begin and end. Floats beyond it were not cut off there."""
    size = np.abs(row)
    at = (size >= FULL_SCALE) & (size <= 1.0)
    if not at.any():
        nowhere = np.zeros(0, np.intp)
        return nowhere, nowhere
    side = np.where(at, np.sign(row), 0).astype(np.int8)
    edges = np.flatnonzero(np.diff(side, prepend=np.int8(0), append=np.int8(0)))
    inside = side[edges[:-1]] != 0
    return edges[:-1][inside], edges[1:][inside]


def _draw(told: Samples, heard: Samples, begins: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]) -> None:
    """Each plateau by Lagrange's cubic through two samples on each side, never below what was heard."""
    lengths = ends - begins
    first, last = np.repeat(begins, lengths), np.repeat(ends, lengths)
    at = np.arange(lengths.sum()) + np.repeat(ends - lengths.cumsum(), lengths)
    t, length = (at - first).astype(np.float64), (last - first).astype(np.float64)
    a, b, c, d = t + 2, t + 1, t - length, t - length - 1
    peak = (
        -heard[first - 2] * b * c * d / ((length + 2) * (length + 3))
        + heard[first - 1] * a * c * d / ((length + 1) * (length + 2))
        - heard[last] * a * b * d / ((length + 1) * (length + 2))
        + heard[last + 1] * a * b * c / ((length + 2) * (length + 3))
    )
    side = np.sign(heard[at])
    told[at] = side * np.clip(side * peak, np.abs(heard[at]), HIGHEST)
