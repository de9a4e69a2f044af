"""Raw sound: the codes mean what they should, and how bytes are cut changes no sample."""

import io
import wave

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.audio.decoder import open_decoder
from service.audio.pcm import PcmDecoder
from service.audio.rate_monitor import RateMonitor
from service.errors import ServiceError


def whole(decoder, data, size=None):
    parts = [data] if size is None else [data[at : at + size] for at in range(0, len(data), size)]
    return np.concatenate([*(decoder.push(part) for part in parts), decoder.finish()], axis=1)


def ffmpeg(codec: str, data: bytes, rate: int = 8000) -> np.ndarray:
    """The same bytes through FFmpeg's own decoder."""
    context = av.CodecContext.create(codec, "r")
    context.sample_rate, context.layout = rate, "mono"
    frames = context.decode(av.Packet(data)) + context.decode(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]) / 32768


@pytest.mark.parametrize(("encoding", "codec"), [("mulaw", "pcm_mulaw"), ("alaw", "pcm_alaw")])
def test_every_g711_code_is_what_ffmpeg_says(encoding, codec):
    data = bytes(range(256))
    ours = PcmDecoder(encoding, 16000)._floats(data, 256)
    np.testing.assert_array_equal(ours, ffmpeg(codec, data).astype(np.float32))


def test_linear16_at_its_own_rate_is_exact():
    samples = np.array([0, 1, -1, 32767, -32768], "<i2")
    np.testing.assert_array_equal(whole(PcmDecoder("linear16", 16000), samples.tobytes())[0], samples / 32768)


@pytest.mark.parametrize("encoding", ["linear16", "linear32", "mulaw", "alaw"])
@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_bytes_one_by_one_give_the_same_samples(encoding, rate, channels):
    rng = np.random.default_rng(3)
    if encoding == "linear32":
        data = rng.uniform(-1, 1, 400 * channels).astype("<f4").tobytes()
    else:
        data = rng.bytes(800 * channels)
    at_once = whole(PcmDecoder(encoding, rate, channels), data)
    np.testing.assert_array_equal(whole(PcmDecoder(encoding, rate, channels), data, 1), at_once)
    assert at_once.shape[0] == channels and at_once.dtype == np.float32


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=20), st.sampled_from([8000, 11025, 22050, 48000]))
def test_any_cutting_gives_the_same_samples(cuts, rate):
    data = np.random.default_rng(5).bytes(20000)
    parts, at = [], 0
    for size in cuts:
        parts.append(data[at : at + size])
        at += size
    parts.append(data[at:])
    cut = PcmDecoder("linear16", rate)
    got = np.concatenate([*(cut.push(part) for part in parts), cut.finish()], axis=1)
    np.testing.assert_array_equal(got, whole(PcmDecoder("linear16", rate), data))


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_a_tone_stays_a_tone_of_the_same_length(rate):
    clock = np.arange(rate) / rate
    data = (0.5 * np.sin(2 * np.pi * 440 * clock) * 32767).astype("<i2").tobytes()
    sound = whole(PcmDecoder("linear16", rate), data)[0]
    assert len(sound) == pytest.approx(16000, abs=2)
    spectrum = np.abs(np.fft.rfft(sound[2000:14000] * np.hanning(12000)))
    assert spectrum.argmax() * 16000 / 12000 == pytest.approx(440, abs=2)


def test_mixing_is_the_mean_of_the_channels():
    data = np.array([[100, 300], [-200, 0]], "<i2").tobytes()
    np.testing.assert_allclose(
        whole(PcmDecoder("linear16", 16000, 2, mix=True), data)[0] * 32768, [200, -100]
    )


@pytest.mark.parametrize("rate", [8000, 16000, 24000])
def test_after_its_end_the_sound_begins_anew_and_the_least_of_it_is_heard(rate):
    data = np.random.default_rng(3).integers(-9000, 9000, rate // 5).astype("<i2").tobytes()
    decoder = PcmDecoder("linear16", rate)
    first, second = whole(decoder, data + b"\0"), whole(decoder, data[1:])
    np.testing.assert_array_equal(first, whole(PcmDecoder("linear16", rate), data))
    np.testing.assert_array_equal(second, whole(PcmDecoder("linear16", rate), b"\0" + data[1:]))
    assert whole(decoder, b"\0\0").shape[1] >= 1


def test_half_a_sample_waits_and_is_told():
    decoder = PcmDecoder("linear16", 16000, 2)
    assert decoder.push(b"\x01\x02\x03").shape == (2, 0)
    assert decoder.odd_bytes == 3
    assert decoder.push(b"\x04").shape == (2, 1) and decoder.odd_bytes == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_floats_that_are_no_sound_are_refused(value):
    with pytest.raises(ServiceError, match="linear32"):
        PcmDecoder("linear32", 16000).push(np.array([0.0, value], "<f4").tobytes())


async def everything(decoder, data, size):
    told = []
    for at in range(0, len(data), size):
        told += [sound async for sound in decoder.push(data[at : at + size])]
    told += [sound async for sound in decoder.finish()]
    return np.concatenate(told, axis=1) if told else np.zeros((1, 0), np.float32)


async def test_a_short_stream_is_not_lost_while_its_beginning_is_looked_at():
    data = np.arange(4, dtype="<i2").tobytes()
    assert (await everything(open_decoder("linear16", 16000), data, 1)).shape == (1, 4)


async def test_what_is_neither_declared_nor_recognized_is_refused_unless_a_rate_is_given():
    with pytest.raises(ServiceError, match="no container that is known"):
        await everything(open_decoder(None), b"0123456789abcdef", 16)
    warnings = []
    decoder = open_decoder(None, 8000, warn=lambda code, *_: warnings.append(code))
    assert (await everything(decoder, bytes(1600), 100)).shape[1] == pytest.approx(1600, abs=2)
    assert warnings == ["no_encoding"]


def detected_rate(watch, pace, seconds, step_s=0.1):
    """What a watch says of sound that comes at this pace."""
    for turn in range(int(seconds / step_s)):
        looks = watch.observe(turn * step_s, int((turn + 1) * step_s * pace * 16000))
        if looks is not None:
            return looks
    return None


@pytest.mark.parametrize(
    ("declared", "real", "says"), [(16000, 48000, 48000), (16000, 8000, 8000), (48000, 16000, 16000)]
)
def test_a_wrong_declared_rate_is_noticed(declared, real, says):
    assert detected_rate(RateMonitor(declared), real / declared, 20) == says


@pytest.mark.parametrize("pace", [1.0, 0.97, 1.1, 20.0, 0.6])
def test_other_paces_are_left_alone(pace):
    assert detected_rate(RateMonitor(16000), pace, 30) is None


def test_a_wav_header_is_seen_through_a_raw_declaration():
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(100))
    from service.audio.decoder_pool import detect_container

    assert detect_container(file.getvalue()[:12]) == "wav"
