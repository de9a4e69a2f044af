"""Streaming resampling to 16 kHz with soxr, after declipping. The output does not depend on the block sizes."""

import numpy as np
import soxr

from acoustic.constants import SAMPLE_RATE
from service.audio.declip import Declipper, Samples

__all__ = ["Resampler", "Samples"]


class Resampler:
    """Blocks [channels, n] at any rate to blocks [channels, m] at 16 kHz."""

    def __init__(self, rate: int, channels: int) -> None:
        self.rate = rate
        self.channels = channels
        self._declipper = Declipper(rate, channels)
        self._soxr = (
            None if rate == SAMPLE_RATE else soxr.ResampleStream(rate, SAMPLE_RATE, channels, dtype="float32")
        )

    def push(self, samples: Samples, last: bool = False) -> Samples:
        """Return the samples that are complete; `last` also returns the filter's tail."""
        samples = self._declipper.push(samples, last)
        if self._soxr is None:
            return samples
        resampled = self._soxr.resample_chunk(np.ascontiguousarray(samples.T), last=last)
        return np.ascontiguousarray(resampled.reshape(-1, self.channels).T)

    def finish(self) -> Samples:
        """Return the filter's tail and reset: later samples start a new signal."""
        tail = self.push(np.zeros((self.channels, 0), np.float32), last=True)
        if self._soxr is not None:
            self._soxr.clear()
        return tail
