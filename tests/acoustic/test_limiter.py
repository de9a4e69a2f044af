"""Loud sound is turned down by how loud its stream has been; soft sound, and how the sound is cut, change nothing."""

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


def level_db(sound: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(np.square(sound, dtype=np.float64))))


def heard(sound: np.ndarray, config: FeatureConfig = CONFIG) -> np.ndarray:
    return LevelLimiter(config).push(sound)


@pytest.mark.parametrize("loud_db", [-20.0, -14.0, -10.0])
def test_loud_sound_ends_as_loud_as_allowed(loud_db: float) -> None:
    turned = heard(noise(4, loud_db))
    assert turned.dtype == np.float32
    assert level_db(turned[:1600]) > -26.0 + 0.5
    assert abs(level_db(turned[-SECOND:]) + 26.0) < 1.0


def test_soft_sound_stays_as_it_is() -> None:
    soft = noise(3, -32.0)
    np.testing.assert_array_equal(heard(soft), soft)


def test_what_was_loud_is_forgotten() -> None:
    soft = noise(20, -32.0)
    after = heard(np.concatenate([noise(20, -8.0), soft]))[20 * SECOND :]
    assert level_db(after[:SECOND]) < -42.0
    np.testing.assert_array_equal(after[-SECOND:], soft[-SECOND:])


def test_the_gain_goes_without_a_step() -> None:
    gain = heard(np.full(SECOND, 0.5, np.float32)) / 0.5
    assert gain[0] == 1.0
    assert gain[-1] < 0.15
    assert np.abs(np.diff(gain)).max() < 4e-3


@given(st.integers(0, 9), st.lists(st.integers(0, 700), max_size=40))
@settings(max_examples=50, deadline=None)
def test_how_the_sound_is_cut_changes_no_sample(seed: int, cuts: list[int]) -> None:
    sound = noise(0.7, -10.0, seed)
    stream, at, pieces = LevelLimiter(CONFIG), 0, []
    for cut in cuts:
        pieces.append(stream.push(sound[at : at + cut]))
        at += cut
    pieces.append(stream.push(sound[at:]))
    np.testing.assert_array_equal(np.concatenate(pieces), heard(sound))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_a_sample_that_is_no_sound_spoils_nothing_after_it(poison: float) -> None:
    sound = noise(3, -20.0)
    poisoned = sound.copy()
    poisoned[8_000] = poison
    with np.errstate(all="ignore"):
        after = heard(poisoned)[9_000:]
    assert np.isfinite(after).all()
    assert np.abs(level_db(after) - level_db(heard(sound)[9_000:])) < 6.0


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 16_000, 200_007])
def test_a_batch_in_training_hears_what_streams_hear(samples: int) -> None:
    """Also beyond what is remembered."""
    rows = np.stack([noise(13, level, seed)[:samples] for seed, level in enumerate((-8.0, -24.0, -40.0))])
    turned = limit_level(CONFIG, torch.from_numpy(rows))
    np.testing.assert_allclose(turned.numpy(), [heard(row) for row in rows], atol=1e-6)


def test_without_a_limit_nothing_is_turned_down() -> None:
    loud = torch.from_numpy(noise(1, -5.0))[None]
    assert limit_level(replace(CONFIG, max_level_db=None), loud) is loud


def test_a_limit_needs_a_level_and_a_prior() -> None:
    with pytest.raises(AcousticError, match="max_level_db"):
        replace(CONFIG, max_level_db=6)
    with pytest.raises(AcousticError, match="prior_frames"):
        replace(CONFIG, prior_frames=0)
