"""Maps frames to samples, and pre-emphasizes and pads a slice of a signal. No PyTorch.

Frame t is centered on sample 160 t. The signal is padded at its true start and end only, so that a slice of a stream
gives exactly the frames of the complete signal.
"""

import numpy as np
from numpy.typing import NDArray

from acoustic.config import FeatureConfig
from acoustic.errors import AcousticError

Samples = NDArray[np.float32]


def frame_count(config: FeatureConfig, samples: int) -> int:
    """Frames of a complete signal: samples / hop, rounded up."""
    return -(-samples // config.hop_samples)


def sample_span(config: FeatureConfig, first_frame: int, end_frame: int) -> tuple[int, int]:
    """The samples [begin, end) that frames [first_frame, end_frame) are computed from.

    `end` may lie beyond the signal's end: `prepare_samples` takes a slice that stops before `end` as the end of the
    signal. The slice starts one sample before the first FFT window, for pre-emphasis.
    """
    if not 0 <= first_frame < end_frame:
        raise AcousticError(f"Invalid range of frames: {first_frame} to {end_frame}.")
    half = config.window_samples // 2
    begin = first_frame * config.hop_samples - half - 1
    return max(0, begin), (end_frame - 1) * config.hop_samples + half


def frames_ready(config: FeatureConfig, samples: int) -> int:
    """Frames that are final once that many samples of a stream have arrived."""
    return max(0, (samples - config.window_samples // 2) // config.hop_samples + 1)


def prepare_samples(config: FeatureConfig, samples: Samples, first_frame: int, end_frame: int) -> Samples:
    """Pre-emphasize the slice given by `sample_span` and pad it where it reaches the signal's start or end.

    The result has (end_frame - first_frame - 1) * hop + window samples.
    """
    if samples.ndim != 1:
        raise AcousticError(
            f"The front end takes one channel of samples, not an array of shape {samples.shape}."
        )
    begin, expected_end = sample_span(config, first_frame, end_frame)
    end = begin + len(samples)
    if end > expected_end or end <= (end_frame - 1) * config.hop_samples:
        raise AcousticError(
            f"Frames {first_frame} to {end_frame} need the samples {begin} to {expected_end} "
            f"(or to the signal's end), not {len(samples)} samples."
        )
    half = config.window_samples // 2
    emphasized = samples.astype(np.float32, copy=True)
    emphasized[1:] -= np.float32(config.preemphasis) * samples[:-1]
    missing_left = max(0, half - first_frame * config.hop_samples)
    # Within a stream the first sample of the slice serves pre-emphasis only.
    signal = emphasized if first_frame * config.hop_samples - half - 1 < 0 else emphasized[1:]
    missing_right = expected_end - end
    if not missing_left and not missing_right:
        return signal
    if config.edge == "zero":
        return np.pad(signal, (missing_left, missing_right))
    return np.pad(signal, (missing_left, missing_right), mode="reflect" if len(signal) > 1 else "edge")
