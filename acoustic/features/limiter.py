"""Loud sound is turned down before the front end hears it, by how loud its stream has been on average so far.

A network that is normalized as it hears knows a loud voice from a soft one: the logarithm's floor hides less of it, the
prior is further away. Nothing is turned up, and nothing is waited for: within a block of a frame's hop the gain goes
from what was known before the last block to what is known before this one.
"""

import math

import numpy as np

from acoustic.config import FeatureConfig
from acoustic.features.framing import Samples


class LevelLimiter:
    """The gain of one stream. How the sound is cut changes no sample.

    Its memory is as long as normalization's: the prior weighs `prior_frames` blocks as loud as allowed, and whenever
    `memory_frames` are full, what came before counts half.
    """

    def __init__(self, config: FeatureConfig) -> None:
        assert config.max_level_db is not None
        self._hop, self._limit = config.hop_samples, config.memory_frames
        self._loudest = 10 ** (config.max_level_db / 10)
        self._blocks = float(config.prior_frames)
        self._total = self._loudest * self._blocks
        self._gains = [1.0, 1.0]
        """Where the gain of the block that has begun comes from, and where it goes."""
        self._begun: Samples = np.zeros(0, np.float32)
        self._ramp = np.arange(1, self._hop + 1, dtype=np.float32) / np.float32(self._hop)

    def push(self, samples: Samples) -> Samples:
        """As many samples as came."""
        heard = np.concatenate([self._begun, samples], dtype=np.float32)
        whole = len(heard) // self._hop
        blocks = heard[: whole * self._hop].reshape(whole, self._hop)
        # A sample that is no number is the engine's to refuse; here it must only not warn.
        with np.errstate(all="ignore"):
            powers = np.einsum("ij,ij->i", blocks, blocks) / self._hop
        gains = [*self._gains, *map(self._after, powers.tolist())]
        given = len(self._begun)
        self._gains, self._begun = gains[-2:], heard[whole * self._hop :].copy()
        if min(gains) == 1.0:
            return heard[given:]
        known = np.array(gains, np.float32)[:, None]
        gain = known[:-1] + (known[1:] - known[:-1]) * self._ramp
        turned: Samples = heard[given:] * gain.reshape(-1)[given : len(heard)]
        return turned

    def _after(self, power: float) -> float:
        """The gain once a block of that power was heard: full scale at most, and nothing where it is no number."""
        if math.isfinite(power):
            self._total += min(power, 1.0)
            self._blocks += 1
            if self._blocks >= self._limit:
                self._total, self._blocks = self._total / 2, self._blocks / 2
        return min(1.0, math.sqrt(self._loudest * self._blocks / max(self._total, 1e-30)))
