"""MP4 files with the index (moov) before and after the audio: equal samples, bounded memory, clear errors."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from service.audio.decoder import open_decoder
from service.audio.decoder_pool import AudioDecoderPool, SandboxLimits
from service.errors import ErrorCode, ServiceError
from service.jobs.recordings import AudioFormat, ReadProgress, channels_of, decode_file
from tests.audio.test_decoder_pool import CASES, container, everything, limits_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def audio_decoders() -> AsyncIterator[AudioDecoderPool]:
    own = AudioDecoderPool(8, SandboxLimits(memory_mb=64, timeout_s=20.0))
    own.start()
    yield own
    await asyncio.to_thread(own.stop)


def index_last(form: str = "mp4", codec: str = "aac", seconds: float = 3.0) -> bytes:
    """As phones write it."""
    data = container(form, codec, seconds=seconds)
    assert data.index(b"mdat") < data.index(b"moov")
    return data


def index_first(form: str = "mp4", codec: str = "aac", seconds: float = 3.0) -> bytes:
    """As for streaming."""
    data = container(form, codec, seconds=seconds, movflags="faststart")
    assert data.index(b"moov") < data.index(b"mdat")
    return data


async def of_file(
    path: Path, data: bytes, audio_decoders: AudioDecoderPool, read: ReadProgress | None = None
) -> np.ndarray:
    await asyncio.to_thread(path.write_bytes, data)
    parts = [samples async for samples in decode_file(path, AudioFormat(), 1, audio_decoders, read)]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(("form", "codec"), [("mp4", "aac"), ("mov", "pcm_s16le"), ("ipod", "alac")])
async def test_the_place_of_the_index_changes_no_sample(audio_decoders, tmp_path, form, codec):
    first, last = index_first(form, codec), index_last(form, codec)
    streamed = await everything(open_decoder(None, mix=True, audio_decoders=audio_decoders), first, 777)
    assert streamed.shape[1] == pytest.approx(48000, abs=500) and np.abs(streamed).max() > 0.3
    for data in (first, last):
        np.testing.assert_array_equal(await of_file(tmp_path / "file", data, audio_decoders), streamed)
    assert audio_decoders.children == 0


async def test_a_long_file_is_decoded_in_little_memory_and_its_progress_is_known(audio_decoders, tmp_path):
    path, read, shares, samples = tmp_path / "long.mov", ReadProgress(), [], 0
    path.write_bytes(container("mov", "pcm_s16le", "7.1", seconds=100.0))
    size = path.stat().st_size
    assert size > audio_decoders.limits.memory_mb * 1024 * 1024
    async for part in decode_file(path, AudioFormat(), 1, audio_decoders, read):
        samples += part.shape[1]
        shares.append(read.bytes / size)
    assert samples == 100 * 16000
    assert shares == sorted(shares) and shares[0] < 0.05 and shares[-1] > 0.95


async def test_the_channels_are_counted_wherever_the_index_is(audio_decoders, tmp_path):
    for movflags in (None, "faststart"):
        data = container("mp4", "aac", layout="stereo", seconds=0.5, movflags=movflags)
        (tmp_path / "two.m4a").write_bytes(data)
        assert await channels_of(tmp_path / "two.m4a", AudioFormat(multichannel=True), audio_decoders) == 2
    assert audio_decoders.children == 0


def with_entries(data: bytes, table: bytes, at: int, value: int) -> bytes:
    """The file with other numbers in a table of its index, from the table's byte `at` on."""
    begin = data.rindex(table) + 4
    end = begin - 8 + int.from_bytes(data[begin - 8 : begin - 4], "big")
    patched = bytearray(data)
    for place in range(begin + at, min(end, begin + at + 400), 4):
        patched[place : place + 4] = value.to_bytes(4, "big")
    return bytes(patched)


HOSTILE = {
    "cut off before its index": lambda data: data[: data.index(b"moov") - 4],
    "cut off in its index": lambda data: data[: data.index(b"moov") + 200],
    "offsets beyond the file": lambda data: with_entries(data, b"stco", 8, 0xFFFFFFF0),
    "an endless table of offsets": lambda data: with_entries(data, b"stco", 4, 0xFFFFFFFF),
    "an endless table of sizes": lambda data: with_entries(data, b"stsz", 4, 0x7FFFFFFF),
    "no index": lambda data: data.replace(b"moov", b"junk"),
}


@pytest.mark.parametrize("harm", HOSTILE)
async def test_a_broken_index_is_a_clear_error(audio_decoders, tmp_path, harm):
    data = HOSTILE[harm](index_last())
    with pytest.raises(ServiceError, match="cannot be decoded") as error:
        await of_file(tmp_path / "file", data, audio_decoders)
    assert error.value.code == "audio" and "Errno" not in error.value.message
    assert audio_decoders.children == 0
    assert (await of_file(tmp_path / "file", index_last(), audio_decoders)).shape[1] > 47000


async def test_what_is_whole_of_a_cut_off_file_is_decoded(audio_decoders, tmp_path):
    data = index_first()
    assert (await of_file(tmp_path / "file", data[: len(data) // 2], audio_decoders)).shape[1] > 15_000


async def test_a_stream_with_its_index_at_the_end_is_told_what_to_do(audio_decoders):
    with pytest.raises(ServiceError, match="upload it as a file") as error:
        await everything(open_decoder("mp4", mix=True, audio_decoders=audio_decoders), index_last(), 5000)
    assert error.value.code is ErrorCode.AUDIO
    assert audio_decoders.children == 0


@pytest.mark.parametrize("name", CASES)
async def test_a_file_of_any_container_gives_what_a_stream_of_it_gives(audio_decoders, tmp_path, name):
    data = container(*CASES[name])
    streamed = await everything(open_decoder(None, mix=True, audio_decoders=audio_decoders), data, 5000)
    np.testing.assert_array_equal(await of_file(tmp_path / "file", data, audio_decoders), streamed)


async def test_the_child_of_a_file_holds_the_file_and_cannot_write_it(audio_decoders, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(index_last("mov", "pcm_s16le", seconds=60.0))
    with path.open("rb") as file:
        decoder = audio_decoders.open("mp4", 1, True, file)
    sounds = decoder.finish()
    await anext(sounds)
    limits, held = limits_of(decoder._pid)
    assert "Max open files            0                    0" in limits
    assert held == ["0", "1", "2", "3", "4"]
    held_file = Path(f"/proc/{decoder._pid}")
    assert (held_file / "fd/4").resolve() == path
    flags = (held_file / "fdinfo/4").read_text().split("flags:")[1].split()[0]
    assert int(flags, 8) & 3 == 0  # O_RDONLY
    await sounds.aclose()
    decoder.close()
    assert audio_decoders.children == 0


async def test_a_file_that_is_given_up_ends_its_child(audio_decoders, tmp_path):
    (tmp_path / "file").write_bytes(index_last("mov", "pcm_s16le", seconds=60.0))
    sounds = decode_file(tmp_path / "file", AudioFormat(), 1, audio_decoders)
    await anext(sounds)
    assert audio_decoders.children == 1
    await sounds.aclose()
    assert audio_decoders.children == 0


async def test_a_file_that_cannot_be_read_is_no_fault_of_its_audio(audio_decoders, tmp_path):
    with (tmp_path / "file").open("wb") as file:  # reading a descriptor that is open for writing fails
        decoder = audio_decoders.open("mp4", 1, True, file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await anext(decoder.finish())
    assert audio_decoders.children == 0
