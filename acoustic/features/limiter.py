"""Attenuates loud streams before the front end, by their average level so far.

`causal` normalization starts from a prior and the logarithm has a floor, so features depend on the level of the audio.
Quiet streams are not amplified, and nothing is delayed: within each block of one frame's hop the gain moves linearly
from the gain after the block before the last to the gain after the last block.
"""

import math

import numpy as np

from acoustic.config import FeatureConfig
from acoustic.features.framing import Samples


class LevelLimiter:
    """The gain of one stream. The result does not depend on how the audio is divided among calls of `push`.

    The average decays as the statistics of causal normalization do: the prior is `prior_frames` blocks at the maximum
    level, and the sums are halved whenever they hold `memory_frames` blocks.
    """

    def __init__(self, config: FeatureConfig) -> None:
        assert config.max_level_db is not None
        self._block_samples, self._memory_blocks = config.hop_samples, config.memory_frames
        self._max_power = 10 ** (config.max_level_db / 10)
        self._blocks = float(config.prior_frames)
        self._power_sum = self._max_power * self._blocks
        self._gains = [1.0, 1.0]
        """The gain at the start and at the end of the current, incomplete block."""
        self._pending: Samples = np.zeros(0, np.float32)
        self._ramp = np.arange(1, self._block_samples + 1, dtype=np.float32) / np.float32(self._block_samples)

    def push(self, samples: Samples) -> Samples:
        """The same number of samples, attenuated."""
        audio = np.concatenate([self._pending, samples], dtype=np.float32)
        count = len(audio) // self._block_samples
        blocks = audio[: count * self._block_samples].reshape(count, self._block_samples)
        powers = np.einsum("ij,ij->i", blocks, blocks) / self._block_samples
        gains = self._gains + self._gains_after(powers.tolist())
        already_returned = len(self._pending)
        self._gains, self._pending = gains[-2:], audio[count * self._block_samples :].copy()
        if min(gains) == 1.0:
            return audio[already_returned:]
        ends = np.array(gains, np.float32)[:, None]
        ramps = ends[:-1] + (ends[1:] - ends[:-1]) * self._ramp
        limited: Samples = audio[already_returned:] * ramps.reshape(-1)[already_returned : len(audio)]
        return limited

    def _gains_after(self, powers: list[float]) -> list[float]:
        """Add the power of each block (clipped to full scale; ignored if not finite); the gain after each."""
        max_power, power_sum, blocks = self._max_power, self._power_sum, self._blocks
        gains = []
        for power in powers:
            if math.isfinite(power):
                power_sum += min(power, 1.0)
                blocks += 1
                if blocks >= self._memory_blocks:
                    power_sum, blocks = power_sum / 2, blocks / 2
            gains.append(min(1.0, math.sqrt(max_power * blocks / max(power_sum, 1e-30))))
        self._power_sum, self._blocks = power_sum, blocks
        return gains
