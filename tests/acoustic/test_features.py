"""The front end: equal to an independent computation, equal at every split, exact for every slice."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acoustic.architectures import FIXED
from acoustic.config import FeatureConfig
from acoustic.errors import AcousticError
from acoustic.features.framing import frame_count, frames_ready, prepare_samples, sample_span
from acoustic.features.front_end import FeatureStream, FrontEnd, mel_filters

CONFIG = FeatureConfig()
FRONT_END = FrontEnd(CONFIG)


def audio(samples: int, seed: int = 1) -> np.ndarray:
    """Noise that swells, so that every frame differs from its neighbours."""
    noise = np.random.default_rng(seed).standard_normal(samples)
    return (noise * 0.2 * (1.2 + np.sin(np.arange(samples) / 900))).astype(np.float32)


def by_the_book(samples: np.ndarray) -> np.ndarray:
    """The published front end in double precision, through torch.stft with its own centring and padding."""
    signal = torch.from_numpy(samples).double()
    emphasised = torch.cat([signal[:1], signal[1:] - 0.97 * signal[:-1]])
    spectrum = torch.stft(
        emphasised,
        n_fft=512,
        hop_length=160,
        win_length=320,
        window=torch.hann_window(320, periodic=False, dtype=torch.float64),
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )
    power = spectrum.abs() ** 2
    mels = torch.from_numpy(mel_filters(CONFIG)).double() @ power
    return torch.log(mels + 2.0**-24)[:, : -(-len(samples) // 160)].numpy()


@pytest.mark.parametrize("samples", [300, 320, 16_000, 16_001, 16_159, 48_117])
def test_equals_the_published_definition(samples: int) -> None:
    signal = audio(samples)
    ours = FRONT_END.features(signal)
    assert ours.shape == (64, -(-samples // 160))
    np.testing.assert_allclose(ours.numpy(), by_the_book(signal), atol=2e-4)


def test_mel_filters_are_slaneys() -> None:
    """Known properties of the scale: linear below 1 kHz (200 Hz = 3 mels), each triangle of area one."""
    filters = mel_filters(CONFIG)
    assert filters.shape == (64, 257)
    hertz_per_bin = 8000 / 256
    # Triangles narrower than two bins are sampled too coarsely to have their area exactly.
    np.testing.assert_allclose(filters[40:].sum(axis=1) * hertz_per_bin, 1.0, atol=0.02)
    peaks = filters.argmax(axis=1) * hertz_per_bin
    assert np.all(np.diff(peaks) >= 0)
    # 64 bands from 0 to 8 kHz lie 45.245 / 65 = 0.696 mels apart: 46.4 Hz in the linear part.
    edges = 45.2449 / 65 * np.arange(66)
    assert abs(peaks[9] - edges[10] * 200 / 3) <= hertz_per_bin / 2
    # The last band's centre, in the logarithmic part: 1000 * 6.4 ** ((mels - 15) / 27).
    assert abs(peaks[63] - 1000 * 6.4 ** ((edges[64] - 15) / 27)) <= hertz_per_bin / 2


@pytest.mark.parametrize(
    ("samples", "frames"), [(0, 0), (1, 1), (160, 1), (161, 2), (16_000, 100), (16_001, 101)]
)
def test_frames_for_samples(samples: int, frames: int) -> None:
    assert frame_count(CONFIG, samples) == frames
    assert FRONT_END.features(audio(samples)).shape == (64, frames)


@given(
    st.integers(0, 4_000),
    st.lists(st.integers(1, 900), max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_streaming_equals_whole_at_every_split(samples: int, cuts: list[int]) -> None:
    signal = audio(samples)
    stream = FeatureStream(FRONT_END)
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(stream.push(signal[at : at + cut]))
        at += cut
    pieces += [stream.push(signal[at:]), stream.finish()]
    joined = torch.cat(pieces, dim=1)
    whole = FRONT_END.features(signal)
    assert joined.shape == whole.shape
    torch.testing.assert_close(joined, whole, atol=1e-5, rtol=0)


def test_streaming_one_sample_at_a_time_and_bounded() -> None:
    signal = audio(1_500)
    stream = FeatureStream(FRONT_END)
    pieces = []
    for sample in signal:
        pieces.append(stream.push(np.array([sample], np.float32)))
        assert len(stream._buffer) <= 2 * CONFIG.window_samples
    pieces.append(stream.finish())
    torch.testing.assert_close(torch.cat(pieces, dim=1), FRONT_END.features(signal), atol=1e-5, rtol=0)


@given(st.integers(1, 5_000), st.integers(0, 40), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_every_slice_gives_exactly_its_frames(samples: int, first: int, count: int) -> None:
    signal = audio(samples)
    total = frame_count(CONFIG, samples)
    first = min(first, total - 1)
    end = min(first + count, total)
    begin, stop = sample_span(CONFIG, first, end)
    some = FRONT_END.frames(signal[begin:stop], first, end)
    torch.testing.assert_close(some, FRONT_END.features(signal)[:, first:end], atol=1e-5, rtol=0)


def test_frames_ready_never_change() -> None:
    signal = audio(3_000)
    whole = FRONT_END.features(signal)
    for known in range(100, 3_000, 37):
        ready = frames_ready(CONFIG, known)
        if ready:
            early = FRONT_END.features(signal[:known])[:, :ready]
            torch.testing.assert_close(early, whole[:, :ready], atol=1e-5, rtol=0)


def test_equal_spans_have_equal_shapes() -> None:
    signal = audio(8_000)
    shapes = set()
    for first in (0, 1, 2, 20, 39):
        begin, stop = sample_span(CONFIG, first, first + 11)
        shapes.add(prepare_samples(CONFIG, signal[begin:stop], first, first + 11).shape)
    assert shapes == {(10 * 160 + 320,)}


@pytest.mark.parametrize("samples", [1, 160, 7 * 160, 7 * 160 + 1, 14 * 160 + 161, 20_000])
def test_long_sound_in_stretches_equals_it_at_once(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    signal = audio(samples)
    at_once = FRONT_END.frames(signal, 0, frame_count(CONFIG, samples))
    monkeypatch.setattr("acoustic.features.front_end.AT_ONCE_FRAMES", 7)
    torch.testing.assert_close(FRONT_END.features(signal), at_once, atol=1e-5, rtol=0)


def test_batch_equals_one_by_one() -> None:
    signals = [audio(n, seed=n) for n in (5_000, 1, 0, 3_333, 700)]
    features, lengths = FRONT_END.batch(signals)
    assert lengths.tolist() == [32, 1, 0, 21, 5]
    for row, length, signal in zip(features, lengths, signals, strict=True):
        torch.testing.assert_close(row[:, :length], FRONT_END.features(signal), atol=1e-5, rtol=0)


def test_batch_of_nothing() -> None:
    features, lengths = FRONT_END.batch([audio(0), audio(0)])
    assert features.shape == (2, 64, 0)
    assert lengths.tolist() == [0, 0]


def test_zero_edges_for_newer_networks() -> None:
    front_end = FrontEnd(FeatureConfig(edge="zero"))
    signal = audio(4_000)
    zero, mirrored = front_end.features(signal), FRONT_END.features(signal)
    torch.testing.assert_close(zero[:, 1:-1], mirrored[:, 1:-1], atol=1e-5, rtol=0)
    assert not torch.allclose(zero[:, 0], mirrored[:, 0], atol=1e-3)


@pytest.mark.parametrize("samples", [0, 5, 1_300])
def test_a_slice_of_the_wrong_length_is_refused(samples: int) -> None:
    with pytest.raises(AcousticError, match="need the samples"):
        prepare_samples(CONFIG, audio(samples), 2, 6)


def test_two_channels_are_refused() -> None:
    with pytest.raises(AcousticError, match="one channel"):
        FRONT_END.features(np.zeros((800, 2), np.float32))


def test_a_stretch_that_is_none_is_refused() -> None:
    with pytest.raises(AcousticError, match="no stretch"):
        sample_span(CONFIG, 5, 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_equals_cpu() -> None:
    signal = audio(30_000)
    gpu = FrontEnd(FIXED).to("cuda").features(signal).cpu()
    torch.testing.assert_close(gpu, FRONT_END.features(signal), atol=1e-3, rtol=0)
