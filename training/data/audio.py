"""Reading clips: any format that libsndfile or FFmpeg decodes, as float32 mono at 16 kHz, validated."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from acoustic.constants import SAMPLE_RATE
from training.errors import TrainingError

Samples = npt.NDArray[np.float32]


class ClipError(TrainingError):
    """A clip that cannot be used; the message names the file."""


def read_clip(path: Path) -> Samples:
    """Decode a clip. Channels are averaged, other sample rates are resampled."""
    import soundfile

    if not path.is_file():
        raise ClipError(f"{path} does not exist.")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError):
        samples, rate = _read_with_ffmpeg(path)
    mono = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    if not len(mono):
        raise ClipError(f"{path} holds no audio.")
    if not np.isfinite(mono).all():
        raise ClipError(f"{path} holds NaN or infinite samples.")
    return resample(mono, rate, SAMPLE_RATE)


def resample(samples: Samples, rate: float, target_rate: float) -> Samples:
    """Resample one clip."""
    if rate == target_rate:
        return np.ascontiguousarray(samples, np.float32)
    import soxr

    return np.asarray(soxr.resample(samples, rate, target_rate), np.float32)


def change_speed_offline(samples: Samples, factor: float) -> Samples:
    """Speed perturbation: the clip played `factor` times as fast (tempo and pitch), as in Kaldi's recipes."""
    return resample(samples, SAMPLE_RATE * factor, SAMPLE_RATE)


def _read_with_ffmpeg(path: Path) -> tuple[Samples, int]:
    import av

    # Raw G.722 has no header: FFmpeg needs the format.
    container_format = "g722" if path.suffix == ".g722" else None
    try:
        with av.open(str(path), format=container_format) as container:
            if not container.streams.audio:
                raise ClipError(f"{path} holds no audio.")
            resampler = av.AudioResampler("flt", "mono", SAMPLE_RATE)
            pieces = []
            for frame in container.decode(audio=0):
                pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
            pieces += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    except (av.FFmpegError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ClipError(f"{path} cannot be decoded ({why}): is it a complete audio file?") from None
    if not pieces:
        raise ClipError(f"{path} cannot be decoded (no audio frames): is it complete?")
    return np.concatenate(pieces).astype(np.float32)[:, None], SAMPLE_RATE
