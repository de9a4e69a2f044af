"""The level limiter attenuates loud streams, leaves quiet ones unchanged and does not depend on block sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acoustic.architectures import FIXED
from acoustic.config import FeatureConfig
from acoustic.errors import AcousticError
from acoustic.features.limiter import LevelLimiter
from training.data.features import limit_level

CONFIG = replace(FIXED, normalize="causal", prior_frames=50, memory_frames=500, max_level_db=-26)
SECOND = 16_000


def noise(seconds: float, level_db: float, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed).normal(0, 10 ** (level_db / 20), round(seconds * SECOND))
    return draw.astype(np.float32)


def level_db(audio: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(np.square(audio, dtype=np.float64))))


def limit(audio: np.ndarray, config: FeatureConfig = CONFIG) -> np.ndarray:
    return LevelLimiter(config).push(audio)


@pytest.mark.parametrize("loud_db", [-20.0, -14.0, -10.0])
def test_loud_audio_is_attenuated_to_the_limit(loud_db: float) -> None:
    limited = limit(noise(4, loud_db))
    assert limited.dtype == np.float32
    assert level_db(limited[:1600]) > -26.0 + 0.5
    assert abs(level_db(limited[-SECOND:]) + 26.0) < 1.0


def test_quiet_audio_is_unchanged() -> None:
    soft = noise(3, -32.0)
    np.testing.assert_array_equal(limit(soft), soft)


def test_the_gain_recovers_after_loud_audio() -> None:
    soft = noise(20, -32.0)
    after = limit(np.concatenate([noise(20, -8.0), soft]))[20 * SECOND :]
    assert level_db(after[:SECOND]) < -42.0
    np.testing.assert_array_equal(after[-SECOND:], soft[-SECOND:])


def test_the_gain_is_continuous() -> None:
    gain = limit(np.full(SECOND, 0.5, np.float32)) / 0.5
    assert gain[0] == 1.0
    assert gain[-1] < 0.15
    assert np.abs(np.diff(gain)).max() < 4e-3


@given(st.integers(0, 9), st.lists(st.integers(0, 700), max_size=40))
@settings(max_examples=50, deadline=None)
def test_the_result_does_not_depend_on_block_sizes(seed: int, cuts: list[int]) -> None:
    audio = noise(0.7, -10.0, seed)
    stream, at, blocks = LevelLimiter(CONFIG), 0, []
    for cut in cuts:
        blocks.append(stream.push(audio[at : at + cut]))
        at += cut
    blocks.append(stream.push(audio[at:]))
    np.testing.assert_array_equal(np.concatenate(blocks), limit(audio))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_sample_that_is_not_finite_does_not_affect_later_audio(value: float) -> None:
    audio = noise(3, -20.0)
    damaged = audio.copy()
    damaged[8_000] = value
    with np.errstate(all="ignore"):
        after = limit(damaged)[9_000:]
    assert np.isfinite(after).all()
    assert np.abs(level_db(after) - level_db(limit(audio)[9_000:])) < 6.0


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 16_000, 200_007])
def test_training_batches_match_streams(samples: int) -> None:
    """Also for audio longer than `memory_frames`."""
    rows = np.stack([noise(13, level, seed)[:samples] for seed, level in enumerate((-8.0, -24.0, -40.0))])
    limited = limit_level(CONFIG, torch.from_numpy(rows))
    np.testing.assert_allclose(limited.numpy(), [limit(row) for row in rows], atol=1e-6)


def test_without_a_limit_audio_is_unchanged() -> None:
    loud = torch.from_numpy(noise(1, -5.0))[None]
    assert limit_level(replace(CONFIG, max_level_db=None), loud) is loud


def test_invalid_limits_are_refused() -> None:
    with pytest.raises(AcousticError, match="max_level_db"):
        replace(CONFIG, max_level_db=6)
    with pytest.raises(AcousticError, match="prior_frames"):
        replace(CONFIG, prior_frames=0)
