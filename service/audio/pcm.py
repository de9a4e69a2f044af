"""Raw sound: linear16, linear32, mu-law and A-law, cut anywhere, to float32 at 16 kHz.

G.711's two laws are tables of 256 values, computed from the recommendation's formula.
"""

import numpy as np
import numpy.typing as npt

from service.audio.resample import Resampler, Samples
from service.errors import ErrorCode, ServiceError

WIDTHS = {"linear16": 2, "linear32": 4, "mulaw": 1, "alaw": 1}
MAX_PLAUSIBLE_LEVEL = 8.0
"""Float sound beyond this is no sound between -1 and 1, though it can be heard."""


def _mulaw_table() -> Samples:
    """ITU-T G.711, mu = 255: sign, three bits of segment, four of step, all inverted."""
    code = ~np.arange(256, dtype=np.uint8)
    segment, step = (code >> 4) & 7, (code & 15).astype(np.int32)
    size = ((2 * step + 33) << segment) - 33
    return (np.where(code & 128, -size, size) * 4 / 32768).astype(np.float32)


def _alaw_table() -> Samples:
    """ITU-T G.711, A = 87.6: every second bit inverted."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    segment, step = ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = np.where(segment == 0, 2 * step + 1, (2 * step + 33) << np.maximum(segment - 1, 0))
    return (np.where(code & 128, size, -size) * 8 / 32768).astype(np.float32)


TABLES: dict[str, npt.NDArray[np.float32]] = {"mulaw": _mulaw_table(), "alaw": _alaw_table()}


class PcmDecoder:
    """One stream of raw interleaved sound. Carries the bytes of a half-sent sample and the resampler's tail."""

    def __init__(self, encoding: str, sample_rate: int, channels: int = 1, *, mix: bool = False) -> None:
        self.encoding = encoding
        self.channels = channels
        self.frame_bytes = WIDTHS[encoding] * channels
        self.mix = mix
        self.peak_level = 0.0
        self._carry = b""
        self._resampler = Resampler(sample_rate, 1 if mix else channels)

    @property
    def odd_bytes(self) -> int:
        """Bytes of a sample that has not come whole."""
        return len(self._carry)

    def push(self, data: bytes) -> Samples:
        """The sound [channels, n] of these bytes; ServiceError "audio" for what is no sound."""
        if self._carry:
            data = self._carry + data
        whole = len(data) // self.frame_bytes * self.frame_bytes
        self._carry = bytes(data[whole:])
        samples = self._floats(data, whole).reshape(-1, self.channels).T
        if self.mix and self.channels > 1:
            samples = samples.mean(axis=0, keepdims=True, dtype=np.float32)
        return self._resampler.push(np.ascontiguousarray(samples))

    def finish(self) -> Samples:
        """What the resampler still holds. A half-sent sample waits for its rest; `odd_bytes` tells of it."""
        return self._resampler.finish()

    def _floats(self, data: bytes, size: int) -> Samples:
        if self.encoding == "linear16":
            return np.frombuffer(data, "<i2", size // 2).astype(np.float32) / np.float32(32768)
        if self.encoding == "linear32":
            floats = np.frombuffer(data, "<f4", size // 4).astype(np.float32)
            peak = float(np.abs(floats).max(initial=0.0))
            if not np.isfinite(peak) or peak > 1e9:
                raise ServiceError(
                    ErrorCode.AUDIO,
                    "the sound declared as linear32 has values that are not numbers or are absurdly large.",
                    "linear32 is 32-bit float between -1 and 1, little-endian. For 16-bit integers say linear16.",
                )
            self.peak_level = max(self.peak_level, peak)
            return floats
        table = TABLES[self.encoding]
        return table[np.frombuffer(data, np.uint8, size)]
