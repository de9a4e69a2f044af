"""Validation of log-probabilities, shared by all decoders."""

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError

TOLERANCE = 1e-2
"""Networks in half precision may exceed log 1 = 0 slightly."""


def validate_log_probs(log_probs: NDArray[np.float32], classes: int) -> NDArray[np.float32]:
    """The frames as contiguous float32 `[frames, classes]`. NaN, logits and wrong shapes raise an error."""
    # Always a read-only view: a writable array is another type to numba and would compile the kernel again.
    frames = np.ascontiguousarray(log_probs, dtype=np.float32)[:]
    frames.flags.writeable = False
    if frames.ndim != 2 or frames.shape[1] != classes:
        raise LanguageError(
            f"The frames have the shape {tuple(frames.shape)}: expected [frames, {classes}], a column for each "
            "character of the alphabet and the last for blank."
        )
    if frames.shape[0] == 0:
        return frames
    if not np.maximum.reduce(frames, axis=None) <= TOLERANCE:  # the negation also catches NaN
        row = int(np.flatnonzero(~(frames.max(axis=1) <= TOLERANCE))[0])
        raise LanguageError(
            f"Frame {row} of this push contains {float(frames[row].max())}: expected natural log-probabilities, "
            "at most 0 and without NaN. Apply log-softmax to the logits first."
        )
    return frames
