"""The three contracts: over the utterance, by constants, and as heard so far."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acoustic.config import FIXED, SPEECH_DEVIATION, SPEECH_MEAN
from acoustic.errors import AcousticError
from acoustic.normalisation import (
    first_memory,
    normalise_fixed,
    normalise_running,
    normalise_utterance,
    normalise_whole,
)
from acoustic.shape import FeatureConfig

UTTERANCE = FeatureConfig()
RUNNING = replace(FIXED, normalise="running")


def features(frames: int, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(frames)
    return torch.randn(batch, 64, frames, generator=generator) * 3.0 - 11.0


def test_utterance_uses_the_unbiased_deviation_of_valid_frames_only() -> None:
    batch = features(50, 2)
    batch[1, :, 20:] = 1e6  # beyond the length: must not count
    normal = normalise_utterance(UTTERANCE, batch, torch.tensor([50, 20]))
    one = batch[1, :, :20]
    expected = (one - one.mean(1, keepdim=True)) / (one.std(1, unbiased=True, keepdim=True) + 1e-5)
    torch.testing.assert_close(normal[1, :, :20], expected, atol=1e-4, rtol=1e-4)
    assert torch.all(normal[1, :, 20:] == 0)


def test_a_lone_frame_becomes_zero_and_nothing_stays_nothing() -> None:
    normal = normalise_utterance(UTTERANCE, features(3, 2), torch.tensor([1, 0]))
    assert torch.all(normal == 0)


def test_fixed_is_the_constants() -> None:
    raw = features(7)
    mean, deviation = torch.tensor(SPEECH_MEAN), torch.tensor(SPEECH_DEVIATION)
    expected = (raw - mean[:, None]) / (deviation[:, None] + 1e-5)
    torch.testing.assert_close(normalise_fixed(FIXED, raw), expected)
    whole = normalise_whole(FIXED, raw, torch.tensor([4]))
    torch.testing.assert_close(whole[:, :, :4], expected[:, :, :4])
    assert torch.all(whole[:, :, 4:] == 0)


def test_running_starts_from_its_prior() -> None:
    memory = first_memory(RUNNING)
    assert memory is not None
    mean, deviation = memory.mean_and_deviation()
    np.testing.assert_allclose(mean, SPEECH_MEAN, rtol=1e-5)
    np.testing.assert_allclose(deviation, SPEECH_DEVIATION, rtol=1e-5)
    assert first_memory(FIXED) is None


def test_running_without_prior_is_the_statistics_of_what_was_heard() -> None:
    config = replace(RUNNING, prior_frames=0)
    raw = features(90)[0]
    memory, heard = first_memory(config), None
    for first in range(0, 90, 30):
        heard, memory = normalise_running(config, raw[:, first : first + 30], memory, slice(None))
    expected = (raw - raw.mean(1, keepdim=True)) / (raw.std(1, unbiased=False, keepdim=True) + 1e-5)
    assert heard is not None
    torch.testing.assert_close(heard, expected[:, 60:], atol=1e-4, rtol=1e-4)


def test_running_counts_each_frame_once_however_windows_overlap() -> None:
    raw = features(60)[0]
    once = first_memory(RUNNING)
    assert once is not None
    once = once.add(raw, RUNNING.memory_frames)
    memory = first_memory(RUNNING)
    for first, new in ((0, 0), (10, 20), (30, 10)):  # windows 0..30, 10..40, 30..60
        window = raw[:, first : (30, 40, 60)[(0, 10, 30).index(first)]]
        _, memory = normalise_running(RUNNING, window, memory, slice(new, None))
    assert memory is not None
    assert memory.frames == pytest.approx(once.frames)
    np.testing.assert_allclose(memory.sums, once.sums)
    np.testing.assert_allclose(memory.squares, once.squares)


def test_running_memory_fades_and_stays_bounded() -> None:
    config = replace(RUNNING, memory_frames=200)
    loud = features(100)[0] + 5.0
    memory = first_memory(config)
    for _ in range(50):
        _, memory = normalise_running(config, loud, memory, slice(None))
        assert memory.frames <= 200
    mean, _ = memory.mean_and_deviation()
    np.testing.assert_allclose(mean, loud.mean(1).numpy(), atol=1e-3)


def test_running_of_a_batch_of_finished_utterances() -> None:
    raw = features(40, 2)
    both = normalise_whole(RUNNING, raw, torch.tensor([40, 25]))
    alone, _ = normalise_running(RUNNING, raw[1, :, :25], None, slice(None))
    torch.testing.assert_close(both[1, :, :25], alone)
    assert torch.all(both[1, :, 25:] == 0)


def test_no_memory_where_none_is_defined() -> None:
    with pytest.raises(AcousticError, match="no memory"):
        normalise_running(FIXED, features(3)[0], None, slice(None))
