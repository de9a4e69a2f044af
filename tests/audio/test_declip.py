"""The declipper restores clipped peaks and changes nothing else, however the audio is split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.audio.declip import FULL_SCALE, Declipper
from service.audio.pcm import PcmDecoder

RATE = 16000
EMPTY = np.zeros((1, 0), np.float32)


def voice(peak: float, rate: int = RATE) -> np.ndarray:
    """Half a second of a harmonic signal with this peak level."""
    time = np.arange(rate // 2) / rate
    signal = sum(np.sin(2 * np.pi * 130 * k * time + k * k) / (1 + (k - 5) ** 2) for k in range(1, 20))
    return (peak * signal / np.abs(signal).max()).astype(np.float32)[None]


def clip(signal: np.ndarray) -> np.ndarray:
    return np.clip(signal, -1.0, 1.0)


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
@pytest.mark.parametrize("peak", [1.5, 2.0])
def test_clipped_peaks_are_restored(rate, peak):
    original = voice(peak, rate)
    clipped = clip(original)
    declipped = Declipper(rate, 1).push(clipped, last=True)
    assert (clipped != original).mean() > 0.01
    assert np.abs(declipped - original).sum() < 0.5 * np.abs(clipped - original).sum()
    below = np.abs(clipped) < FULL_SCALE
    np.testing.assert_array_equal(declipped[below], original[below])


def test_pcm_is_declipped():
    original = voice(2.0)
    data = np.clip(np.round(original * 32768), -32768, 32767).astype("<i2").tobytes()
    decoder = PcmDecoder("linear16", RATE)
    samples = np.concatenate([decoder.push(data), decoder.finish()], axis=1)
    assert samples.shape == original.shape and samples.max() > 1.5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=60), st.floats(0.9, 30.0))
def test_block_sizes_do_not_matter(sizes, peak):
    clipped = clip(np.concatenate([voice(peak), voice(-peak)]))
    stream, parts, start = Declipper(RATE, 2), [], 0
    for size in sizes:
        parts.append(stream.push(clipped[:, start : start + size]))
        start += size
    parts.append(stream.push(clipped[:, start:], last=True))
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), Declipper(RATE, 2).push(clipped, last=True))


def test_unclipped_audio_passes_unchanged_without_delay():
    signal, stream = voice(0.99), Declipper(RATE, 1)
    for start in range(0, signal.shape[1], 320):
        block = signal[:, start : start + 320]
        np.testing.assert_array_equal(stream.push(block), block)


def test_a_clipped_run_waits_for_the_next_samples_up_to_a_limit():
    stream = Declipper(RATE, 1)
    assert stream.push(np.full((1, 20), 0.5, np.float32)).shape[1] == 20
    assert stream.push(np.ones((1, 10), np.float32)).shape[1] == 0
    assert stream.push(np.full((1, 2), 0.5, np.float32)).shape[1] == 12
    assert stream.push(np.ones((1, 30), np.float32)).shape[1] == 0
    assert stream.push(np.ones((1, 30), np.float32)).shape[1] == 60
    # A run longer than the limit passes unchanged and without further delay.
    np.testing.assert_array_equal(stream.push(np.ones((1, 500), np.float32)), np.ones((1, 500)))
    np.testing.assert_array_equal(stream.push(np.full((1, 9), -0.5, np.float32)), np.full((1, 9), -0.5))


def test_floats_beyond_full_scale_are_not_clipped():
    signal = voice(3.0)
    np.testing.assert_array_equal(Declipper(RATE, 1).push(signal, last=True), signal)


def test_last_returns_pending_samples_and_resets():
    stream = Declipper(RATE, 1)
    clipped = np.array([[0.2, 0.6, 1.0, 1.0, 0.6]], np.float32)
    assert stream.push(clipped).shape[1] == 2
    np.testing.assert_array_equal(stream.push(EMPTY, last=True), clipped[:, 2:])
    np.testing.assert_array_equal(stream.push(clipped[:, ::-1], last=True), clipped[:, ::-1])
