"""Which samples a frame is computed from, and a slice of sound made ready for it: plain arithmetic, no PyTorch.

Frame t is centred on sample 160 t; the signal is mirrored only at its true start and end.
"""

import numpy as np
from numpy.typing import NDArray

from acoustic.config import FeatureConfig
from acoustic.errors import AcousticError

Samples = NDArray[np.float32]


def frame_count(config: FeatureConfig, samples: int) -> int:
    """Frames of a finished signal: one for each begun hop."""
    return -(-samples // config.hop_samples)


def sample_span(config: FeatureConfig, first_frame: int, end_frame: int) -> tuple[int, int]:
    """The samples [begin, end) that frames [first_frame, end_frame) are computed from.

    `end` may lie beyond the signal's end; a slice that stops before `end` tells `prepare_samples` that the signal
    ends there. One sample more than the windows cover is asked for on the left: pre-emphasis needs it.
    """
    if not 0 <= first_frame < end_frame:
        raise AcousticError(f"Frames {first_frame} to {end_frame} are no stretch of a stream.")
    half = config.window_samples // 2
    begin = first_frame * config.hop_samples - half - 1
    return max(0, begin), (end_frame - 1) * config.hop_samples + half


def frames_ready(config: FeatureConfig, samples: int) -> int:
    """Frames that can no longer change once so many samples of an unfinished stream are known."""
    return max(0, (samples - config.window_samples // 2) // config.hop_samples + 1)


def prepare_samples(config: FeatureConfig, samples: Samples, first_frame: int, end_frame: int) -> Samples:
    """Pre-emphasise the slice that `sample_span` named and mirror it at the signal's own ends.

    The result always has (end_frame - first_frame - 1) * hop + window samples: equal spans, equal shapes.
    """
    if samples.ndim != 1:
        raise AcousticError(f"The front end takes one channel of samples, not the shape {samples.shape}.")
    begin, expected_end = sample_span(config, first_frame, end_frame)
    end = begin + len(samples)
    if end > expected_end or end <= (end_frame - 1) * config.hop_samples:
        raise AcousticError(
            f"Frames {first_frame} to {end_frame} need the samples {begin} to {expected_end} "
            f"(or to the signal's end), not {len(samples)} samples."
        )
    half = config.window_samples // 2
    emphasised = samples.astype(np.float32, copy=True)
    emphasised[1:] -= np.float32(config.preemphasis) * samples[:-1]
    missing_left = max(0, half - first_frame * config.hop_samples)
    # A slice from inside the stream begins with the one sample that only pre-emphasis needed.
    known = emphasised if first_frame * config.hop_samples - half - 1 < 0 else emphasised[1:]
    missing_right = expected_end - end
    if not missing_left and not missing_right:
        return known
    if config.edge == "zero":
        return np.pad(known, (missing_left, missing_right))
    return np.pad(known, (missing_left, missing_right), mode="reflect" if len(known) > 1 else "edge")
