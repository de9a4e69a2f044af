"""Headerless PCM (linear16, linear32, mu-law, A-law), split at any byte, to float32 at 16 kHz.

The two laws of ITU-T G.711 are tables of 256 values.
"""

import numpy as np
import numpy.typing as npt

from service.audio.resample import Resampler, Samples
from service.errors import ErrorCode, ServiceError

BYTES_PER_SAMPLE = {"linear16": 2, "linear32": 4, "mulaw": 1, "alaw": 1}
_PER_INT16 = np.float32(1 / 32768)
MAX_PLAUSIBLE_LEVEL = 8.0
"""A linear32 peak above this means that the samples are not scaled to -1..1. The stream gets a warning."""


def _mulaw_table() -> Samples:
    """ITU-T G.711, mu = 255: a sign bit, three segment bits and four step bits, all inverted."""
    code = ~np.arange(256, dtype=np.uint8)
    segment, step = (code >> 4) & 7, (code & 15).astype(np.int32)
    magnitude = ((2 * step + 33) << segment) - 33
    return (np.where(code & 128, -magnitude, magnitude) * 4 / 32768).astype(np.float32)


def _alaw_table() -> Samples:
    """ITU-T G.711, A = 87.6: every other bit inverted."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    segment, step = ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32)
    magnitude = np.where(segment == 0, 2 * step + 1, (2 * step + 33) << np.maximum(segment - 1, 0))
    return (np.where(code & 128, magnitude, -magnitude) * 8 / 32768).astype(np.float32)


TABLES: dict[str, npt.NDArray[np.float32]] = {"mulaw": _mulaw_table(), "alaw": _alaw_table()}


class PcmDecoder:
    """Decodes one stream of interleaved PCM. Keeps the bytes of an incomplete frame and the resampler's state."""

    def __init__(self, encoding: str, sample_rate: int, channels: int = 1, *, mix: bool = False) -> None:
        self.encoding = encoding
        self.channels = channels
        self.frame_bytes = BYTES_PER_SAMPLE[encoding] * channels
        self.mix = mix
        self.peak_level = 0.0
        self._partial = b""
        self._resampler = Resampler(sample_rate, 1 if mix else channels)

    @property
    def odd_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._partial)

    def push(self, data: bytes) -> Samples:
        """Decode to samples [channels, n]; ServiceError AUDIO for invalid linear32 values."""
        if self._partial:
            data = self._partial + data
        complete_bytes = len(data) // self.frame_bytes * self.frame_bytes
        self._partial = bytes(data[complete_bytes:])
        samples = self._floats(data, complete_bytes).reshape(-1, self.channels).T
        if self.mix and self.channels > 1:
            samples = samples.mean(axis=0, keepdims=True, dtype=np.float32)
        return self._resampler.push(np.ascontiguousarray(samples))

    def finish(self) -> Samples:
        """Return the resampler's tail. The bytes of an incomplete frame stay for the next `push`; see `odd_bytes`."""
        return self._resampler.finish()

    def _floats(self, data: bytes, size: int) -> Samples:
        if self.encoding == "linear16":
            # One pass; exact, since the factor is a power of two.
            return np.multiply(np.frombuffer(data, "<i2", size // 2), _PER_INT16, dtype=np.float32)
        if self.encoding == "linear32":
            floats = np.frombuffer(data, "<f4", size // 4).astype(np.float32)
            peak = float(np.abs(floats).max(initial=0.0))
            if not np.isfinite(peak) or peak > 1e9:
                raise ServiceError(
                    ErrorCode.AUDIO,
                    "the audio declared as linear32 contains NaN, infinite or out-of-range values.",
                    "linear32 is 32-bit little-endian float between -1 and 1. For 16-bit integers use linear16.",
                )
            self.peak_level = max(self.peak_level, peak)
            return floats
        table = TABLES[self.encoding]
        return table[np.frombuffer(data, np.uint8, size)]
