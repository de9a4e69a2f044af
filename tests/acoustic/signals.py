"""Synthetic audio for tests that need no speech."""

import numpy as np


def audio(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise with an envelope like speech."""
    count = int(seconds * 16_000)
    noise = np.random.default_rng(seed).normal(0, 0.1, count)
    return (noise * (0.05 + np.abs(np.sin(np.arange(count) / 4_000)))).astype(np.float32)
