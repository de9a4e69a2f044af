"""What every decoder demands of the frames it is given, said once."""

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError

TOLERANCE = 1e-2
"""Half-precision networks may overshoot log 1 = 0 by a little."""


def validate_log_probs(log_probs: NDArray[np.float32], classes: int) -> NDArray[np.float32]:
    """The frames as contiguous float32 `[frames, classes]`; NaN, logits and wrong shapes are refused."""
    # Always a view and always read-only: to a compiled kernel anything else is another type, to be compiled anew.
    frames = np.ascontiguousarray(log_probs, dtype=np.float32)[:]
    frames.flags.writeable = False
    if frames.ndim != 2 or frames.shape[1] != classes:
        raise LanguageError(
            f"Got frames of shape {tuple(frames.shape)}: expected [frames, {classes}], one column for each "
            "character of the alphabet and the last for blank."
        )
    if frames.shape[0] == 0:
        return frames
    if not np.maximum.reduce(frames, axis=None) <= TOLERANCE:  # also true for NaN: a maximum carries it along
        row = int(np.flatnonzero(~(frames.max(axis=1) <= TOLERANCE))[0])
        raise LanguageError(
            f"Frame {row} of this push holds {float(frames[row].max())}: expected natural log-probabilities, "
            "at most 0 and no NaN. Apply log-softmax to raw outputs first."
        )
    return frames
