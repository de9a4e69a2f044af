"""Streaming resampling to 16 kHz with soxr, cut-off peaks drawn anew: how the sound is cut changes no sample."""

import numpy as np
import soxr

from acoustic.constants import SAMPLE_RATE
from service.audio.declip import Declipper, Samples

__all__ = ["Resampler", "Samples"]


class Resampler:
    """Sound [channels, n] at one rate in, [channels, m] at 16 kHz out; keeps the filter's length and a plateau's."""

    def __init__(self, rate: int, channels: int) -> None:
        self.rate = rate
        self.channels = channels
        self._declipper = Declipper(rate, channels)
        self._soxr = (
            None if rate == SAMPLE_RATE else soxr.ResampleStream(rate, SAMPLE_RATE, channels, dtype="float32")
        )

    def push(self, samples: Samples, last: bool = False) -> Samples:
        """What can be told of the sound so far; with `last` also what the filter still held."""
        samples = self._declipper.push(samples, last)
        if self._soxr is None:
            return samples
        resampled = self._soxr.resample_chunk(np.ascontiguousarray(samples.T), last=last)
        return np.ascontiguousarray(resampled.reshape(-1, self.channels).T)

    def finish(self) -> Samples:
        """The filter's tail. Sound that still comes begins anew."""
        tail = self.push(np.zeros((self.channels, 0), np.float32), last=True)
        if self._soxr is not None:
            self._soxr.clear()
        return tail
