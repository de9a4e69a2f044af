"""PCM decoding: correct G.711 tables, samples independent of chunk sizes, detection of a wrong rate."""

import io
import wave

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.audio.decoder import AudioDecoder
from service.audio.pcm import PcmDecoder
from service.audio.rate_monitor import RateMonitor
from service.errors import ServiceError


def decode(decoder, data, size=None):
    parts = [data] if size is None else [data[start : start + size] for start in range(0, len(data), size)]
    return np.concatenate([*(decoder.push(part) for part in parts), decoder.finish()], axis=1)


def ffmpeg(codec: str, data: bytes, rate: int = 8000) -> np.ndarray:
    """The same bytes through FFmpeg's decoder."""
    context = av.CodecContext.create(codec, "r")
    context.sample_rate, context.layout = rate, "mono"
    frames = context.decode(av.Packet(data)) + context.decode(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]) / 32768


@pytest.mark.parametrize(("encoding", "codec"), [("mulaw", "pcm_mulaw"), ("alaw", "pcm_alaw")])
def test_every_g711_code_matches_ffmpeg(encoding, codec):
    data = bytes(range(256))
    ours = PcmDecoder(encoding, 16000)._floats(data, 256)
    np.testing.assert_array_equal(ours, ffmpeg(codec, data).astype(np.float32))


def test_linear16_at_16_khz_is_exact():
    samples = np.array([0, 1, -1, 32767, -32768], "<i2")
    np.testing.assert_array_equal(
        decode(PcmDecoder("linear16", 16000), samples.tobytes())[0], samples / 32768
    )


@pytest.mark.parametrize("encoding", ["linear16", "linear32", "mulaw", "alaw"])
@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_single_bytes_give_the_same_samples(encoding, rate, channels):
    rng = np.random.default_rng(3)
    if encoding == "linear32":
        data = rng.uniform(-1, 1, 400 * channels).astype("<f4").tobytes()
    else:
        data = rng.bytes(800 * channels)
    expected = decode(PcmDecoder(encoding, rate, channels), data)
    np.testing.assert_array_equal(decode(PcmDecoder(encoding, rate, channels), data, 1), expected)
    assert expected.shape[0] == channels and expected.dtype == np.float32


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=20), st.sampled_from([8000, 11025, 22050, 48000]))
def test_chunk_sizes_do_not_matter(sizes, rate):
    data = np.random.default_rng(5).bytes(20000)
    parts, start = [], 0
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    parts.append(data[start:])
    decoder = PcmDecoder("linear16", rate)
    chunked = np.concatenate([*(decoder.push(part) for part in parts), decoder.finish()], axis=1)
    np.testing.assert_array_equal(chunked, decode(PcmDecoder("linear16", rate), data))


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_a_tone_keeps_its_pitch_and_length(rate):
    clock = np.arange(rate) / rate
    data = (0.5 * np.sin(2 * np.pi * 440 * clock) * 32767).astype("<i2").tobytes()
    samples = decode(PcmDecoder("linear16", rate), data)[0]
    assert len(samples) == pytest.approx(16000, abs=2)
    spectrum = np.abs(np.fft.rfft(samples[2000:14000] * np.hanning(12000)))
    assert spectrum.argmax() * 16000 / 12000 == pytest.approx(440, abs=2)


def test_mix_is_the_mean_of_the_channels():
    data = np.array([[100, 300], [-200, 0]], "<i2").tobytes()
    np.testing.assert_allclose(
        decode(PcmDecoder("linear16", 16000, 2, mix=True), data)[0] * 32768, [200, -100]
    )


@pytest.mark.parametrize("rate", [8000, 16000, 24000])
def test_finish_resets_the_resampler_but_keeps_odd_bytes(rate):
    data = np.random.default_rng(3).integers(-9000, 9000, rate // 5).astype("<i2").tobytes()
    decoder = PcmDecoder("linear16", rate)
    first, second = decode(decoder, data + b"\0"), decode(decoder, data[1:])
    np.testing.assert_array_equal(first, decode(PcmDecoder("linear16", rate), data))
    np.testing.assert_array_equal(second, decode(PcmDecoder("linear16", rate), b"\0" + data[1:]))
    assert decode(decoder, b"\0\0").shape[1] >= 1


def test_odd_bytes_wait_for_the_next_push():
    decoder = PcmDecoder("linear16", 16000, 2)
    assert decoder.push(b"\x01\x02\x03").shape == (2, 0)
    assert decoder.odd_bytes == 3
    assert decoder.push(b"\x04").shape == (2, 1) and decoder.odd_bytes == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_invalid_floats_are_an_error(value):
    with pytest.raises(ServiceError, match="linear32"):
        PcmDecoder("linear32", 16000).push(np.array([0.0, value], "<f4").tobytes())


async def decode_all(decoder, data, size):
    blocks = []
    for start in range(0, len(data), size):
        blocks += [samples async for samples in decoder.push(data[start : start + size])]
    blocks += [samples async for samples in decoder.finish()]
    return np.concatenate(blocks, axis=1) if blocks else np.zeros((1, 0), np.float32)


async def test_a_stream_shorter_than_the_signature_is_decoded():
    data = np.arange(4, dtype="<i2").tobytes()
    assert (await decode_all(AudioDecoder("linear16", 16000), data, 1)).shape == (1, 4)


@pytest.mark.parametrize(("encoding", "rate", "channels"), [("linear16", 16000, 1), ("mulaw", 8000, 2)])
async def test_bytes_are_kept_until_they_are_decoded(encoding, rate, channels):
    data = np.random.default_rng(3).bytes(3000)
    decoder, expected = AudioDecoder(encoding, rate, channels), AudioDecoder(encoding, rate, channels)
    assert decoder.pending_samples is None, "the format is not known yet"
    blocks = [samples async for samples in decoder.push(data[:200])]
    for start in range(200, 3000, 7):
        decoder.append(data[start : start + 7])
    assert decoder.pending_samples == 2800 // decoder.frame_bytes * 16000 // rate
    blocks += [samples async for samples in decoder.decode()]
    assert decoder.pending_samples == 0
    blocks += [samples async for samples in decoder.finish()]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), await decode_all(expected, data, 3000))


async def test_pending_pcm_is_taken_without_waiting():
    data = np.random.default_rng(3).integers(-9000, 9000, 1000).astype("<i2").tobytes()
    decoder = AudioDecoder("linear16", 16000)
    assert decoder.take_pending() == []
    blocks = [samples async for samples in decoder.push(data[:100])]
    decoder.append(data[100:])
    blocks += decoder.take_pending()
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), await decode_all(decoder, data, 2000))
    invalid = AudioDecoder("linear32", 16000)
    assert [samples.shape async for samples in invalid.push(bytes(40))] == [(1, 10)]
    invalid.append(b"\xff" * 40)
    assert invalid.take_pending() == []


async def test_undetected_audio_is_an_error_unless_a_rate_is_declared():
    with pytest.raises(ServiceError, match="not in a known container format"):
        await decode_all(AudioDecoder(None), b"0123456789abcdef", 16)
    warnings = []
    decoder = AudioDecoder(None, 8000, warn=lambda code, *_: warnings.append(code))
    assert (await decode_all(decoder, bytes(1600), 100)).shape[1] == pytest.approx(1600, abs=2)
    assert warnings == ["no_encoding"]


def detected_rate(monitor, pace, seconds, step_s=0.1):
    """What the monitor reports for audio that arrives at this multiple of real time."""
    for turn in range(int(seconds / step_s)):
        rate = monitor.observe(turn * step_s, int((turn + 1) * step_s * pace * 16000))
        if rate is not None:
            return rate
    return None


@pytest.mark.parametrize(
    ("declared", "real", "expected"), [(16000, 48000, 48000), (16000, 8000, 8000), (48000, 16000, 16000)]
)
def test_a_wrong_declared_rate_is_reported(declared, real, expected):
    assert detected_rate(RateMonitor(declared), real / declared, 20) == expected


@pytest.mark.parametrize("pace", [1.0, 0.97, 1.1, 20.0, 0.6])
def test_other_paces_are_not_reported(pace):
    assert detected_rate(RateMonitor(16000), pace, 30) is None


def test_a_wav_header_is_detected():
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(100))
    from service.audio.decoder_pool import detect_container

    assert detect_container(file.getvalue()[:12]) == "wav"
