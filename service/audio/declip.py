"""What a converter or a program cut off at full scale is drawn anew: peaks in the place of plateaus.

Sound that was not cut off passes as it is, at once. Where it was, it waits for the two samples behind the plateau. How
the sound is cut into pieces changes no sample.
"""

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

FULL_SCALE = 0.999
MAX_PEAK = 4.0
MAX_PLATEAU_S = 0.0025
"""What stays up for longer is no peak of a voice, and is left alone."""
_SUPPORT_SAMPLES = 2
"""Samples on each side of a plateau: the peak is the cubic through these four."""


class Declipper:
    """Sound [channels, n] as it was before it was cut off, of one stream."""

    def __init__(self, rate: int, channels: int) -> None:
        self.max_plateau = round(rate * MAX_PLATEAU_S)
        self._empty = np.zeros((channels, 0), np.float32)
        self._history = self._pending = self._empty

    def push(self, samples: Samples, last: bool = False) -> Samples:
        """What is certain; with `last` everything, and what still comes begins anew."""
        clipped: Samples = np.concatenate([self._history, self._pending, samples], axis=1)
        given, end = self._history.shape[1], clipped.shape[1]
        declipped = clipped
        for channel, row in enumerate(clipped):
            begins, ends = _plateaus(row)
            short = ends - begins <= self.max_plateau
            begins, ends = begins[short], ends[short]
            open_ones = begins[ends + _SUPPORT_SAMPLES > len(row)]
            if len(open_ones) and not last:
                end = min(end, int(open_ones[0]))
            peaks = (begins >= _SUPPORT_SAMPLES) & (ends + _SUPPORT_SAMPLES <= len(row))
            if peaks.any():
                declipped = declipped.copy() if declipped is clipped else declipped
                _interpolate(declipped[channel], row, begins[peaks], ends[peaks])
        # Long enough to tell how long a plateau has been lying there.
        kept = max(0, end - self.max_plateau - _SUPPORT_SAMPLES)
        self._history, self._pending = clipped[:, kept:end].copy(), clipped[:, end:].copy()
        if last:
            self._history = self._pending = self._empty
        return declipped[:, given:end]


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


def _interpolate(
    declipped: Samples, clipped: Samples, begins: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> None:
    """Each plateau by Lagrange's cubic through two samples on each side, never below what was heard."""
    lengths = ends - begins
    first, last = np.repeat(begins, lengths), np.repeat(ends, lengths)
    at = np.arange(lengths.sum()) + np.repeat(ends - lengths.cumsum(), lengths)
    t, length = (at - first).astype(np.float64), (last - first).astype(np.float64)
    a, b, c, d = t + 2, t + 1, t - length, t - length - 1
    peak = (
        -clipped[first - 2] * b * c * d / ((length + 2) * (length + 3))
        + clipped[first - 1] * a * c * d / ((length + 1) * (length + 2))
        - clipped[last] * a * b * d / ((length + 1) * (length + 2))
        + clipped[last + 1] * a * b * c / ((length + 2) * (length + 3))
    )
    side = np.sign(clipped[at])
    declipped[at] = side * np.clip(side * peak, np.abs(clipped[at]), MAX_PEAK)
