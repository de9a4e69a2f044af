"""What was cut off at full scale gets its peaks back; what was not, and what is no peak, stays as it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.audio.declip import FULL_SCALE, Declipper
from service.audio.pcm import PcmDecoder

RATE = 16000
NOTHING = np.zeros((1, 0), np.float32)


def voice(loudness: float, rate: int = RATE) -> np.ndarray:
    """Half a second of a buzz with formants, peaks at `loudness`."""
    clock = np.arange(rate // 2) / rate
    sound = sum(np.sin(2 * np.pi * 130 * k * clock + k * k) / (1 + (k - 5) ** 2) for k in range(1, 20))
    return (loudness * sound / np.abs(sound).max()).astype(np.float32)[None]


def abort_connection(sound: np.ndarray) -> np.ndarray:
    return np.clip(sound, -1.0, 1.0)


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
@pytest.mark.parametrize("loudness", [1.5, 2.0])
def test_peaks_come_back(rate, loudness):
    said = voice(loudness, rate)
    heard = abort_connection(said)
    drawn = Declipper(rate, 1).push(heard, last=True)
    assert (heard != said).mean() > 0.01
    assert np.abs(drawn - said).sum() < 0.5 * np.abs(heard - said).sum()
    below = np.abs(heard) < FULL_SCALE
    np.testing.assert_array_equal(drawn[below], said[below])


def test_a_server_draws_them_too():
    said = voice(2.0)
    data = np.clip(np.round(said * 32768), -32768, 32767).astype("<i2").tobytes()
    decoder = PcmDecoder("linear16", RATE)
    heard = np.concatenate([decoder.push(data), decoder.finish()], axis=1)
    assert heard.shape == said.shape and heard.max() > 1.5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=60), st.floats(0.9, 30.0))
def test_any_cutting_gives_the_same_samples(cuts, loudness):
    heard = abort_connection(np.concatenate([voice(loudness), voice(-loudness)]))
    stream, parts, at = Declipper(RATE, 2), [], 0
    for size in cuts:
        parts.append(stream.push(heard[:, at : at + size]))
        at += size
    parts.append(stream.push(heard[:, at:], last=True))
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), Declipper(RATE, 2).push(heard, last=True))


def test_sound_that_was_not_cut_off_passes_at_once_as_it_is():
    sound, stream = voice(0.99), Declipper(RATE, 1)
    for at in range(0, sound.shape[1], 320):
        piece = sound[:, at : at + 320]
        np.testing.assert_array_equal(stream.push(piece), piece)


def test_a_plateau_waits_for_what_comes_behind_it_and_no_longer_than_a_peak_lasts():
    stream = Declipper(RATE, 1)
    assert stream.push(np.full((1, 20), 0.5, np.float32)).shape[1] == 20
    assert stream.push(np.ones((1, 10), np.float32)).shape[1] == 0
    assert stream.push(np.full((1, 2), 0.5, np.float32)).shape[1] == 12
    assert stream.push(np.ones((1, 30), np.float32)).shape[1] == 0
    assert stream.push(np.ones((1, 30), np.float32)).shape[1] == 60
    # Held there for seconds, it is a broken wire: as it is, and at once.
    np.testing.assert_array_equal(stream.push(np.ones((1, 500), np.float32)), np.ones((1, 500)))
    np.testing.assert_array_equal(stream.push(np.full((1, 9), -0.5, np.float32)), np.full((1, 9), -0.5))


def test_floats_beyond_full_scale_were_not_cut_off_there():
    sound = voice(3.0)
    np.testing.assert_array_equal(Declipper(RATE, 1).push(sound, last=True), sound)


def test_the_end_gives_out_what_waited_and_the_next_sound_begins_anew():
    stream = Declipper(RATE, 1)
    heard = np.array([[0.2, 0.6, 1.0, 1.0, 0.6]], np.float32)
    assert stream.push(heard).shape[1] == 2
    np.testing.assert_array_equal(stream.push(NOTHING, last=True), heard[:, 2:])
    np.testing.assert_array_equal(stream.push(heard[:, ::-1], last=True), heard[:, ::-1])
