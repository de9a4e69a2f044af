"""Clips from disk: any format that libsndfile or FFmpeg reads, as float32 mono at 16 kHz, checked."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from acoustic.constants import SAMPLE_RATE
from training.errors import TrainingError

Samples = npt.NDArray[np.float32]


class ClipError(TrainingError):
    """One clip that cannot be used; the message names the file."""


def read_clip(path: Path) -> Samples:
    """The whole clip; channels are averaged, other sample rates resampled."""
    import soundfile

    if not path.is_file():
        raise ClipError(f"{path} does not exist.")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError):
        samples, rate = _read_with_ffmpeg(path)
    mono = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    if not len(mono):
        raise ClipError(f"{path} holds no sound.")
    if not np.isfinite(mono).all():
        raise ClipError(f"{path} holds samples that are no numbers (NaN or infinite).")
    return resample(mono, rate, SAMPLE_RATE)


def resample(samples: Samples, rate: float, wanted: float) -> Samples:
    """One clip at another rate."""
    if rate == wanted:
        return np.ascontiguousarray(samples, np.float32)
    import soxr

    return np.asarray(soxr.resample(samples, rate, wanted), np.float32)


def change_speed_offline(samples: Samples, factor: float) -> Samples:
    """The clip played `factor` times as fast (pitch and tempo together), as in Kaldi's and Jasper's
    recipes.
    """
    return resample(samples, SAMPLE_RATE * factor, SAMPLE_RATE)


def _read_with_ffmpeg(path: Path) -> tuple[Samples, int]:
    import av

    # A raw G.722 file says nothing about itself; FFmpeg needs to be told.
    named = "g722" if path.suffix == ".g722" else None
    try:
        with av.open(str(path), format=named) as container:
            if not container.streams.audio:
                raise ClipError(f"{path} holds no sound.")
            resampler = av.AudioResampler("flt", "mono", SAMPLE_RATE)
            pieces = []
            for frame in container.decode(audio=0):
                pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
            pieces += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    except (av.FFmpegError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ClipError(f"{path} cannot be decoded ({why}): is it sound, and whole?") from None
    if not pieces:
        raise ClipError(f"{path} cannot be decoded (nothing in it is sound): is it whole?")
    return np.concatenate(pieces).astype(np.float32)[:, None], SAMPLE_RATE
