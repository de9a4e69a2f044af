"""MP4 files with the index (moov) before or after the audio: equal samples, bounded memory, clear errors."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from service.audio.decoder import AudioDecoder
from service.audio.decoder_pool import AudioDecoderPool, SandboxLimits
from service.errors import ServiceError
from service.jobs.recordings import AudioFormat, ReadProgress, channels_of, decode_file
from tests.audio.test_decoder_pool import CASES, decode_all, encode_tone, limits_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def audio_decoders() -> AsyncIterator[AudioDecoderPool]:
    pool = AudioDecoderPool(8, SandboxLimits(memory_mb=64, timeout_s=20.0))
    pool.start()
    yield pool
    await asyncio.to_thread(pool.stop)


def index_last(form: str = "mp4", codec: str = "aac", seconds: float = 3.0) -> bytes:
    """The layout that phones write."""
    data = encode_tone(form, codec, seconds=seconds)
    assert data.index(b"mdat") < data.index(b"moov")
    return data


def index_first(form: str = "mp4", codec: str = "aac", seconds: float = 3.0) -> bytes:
    """The layout for streaming."""
    data = encode_tone(form, codec, seconds=seconds, movflags="faststart")
    assert data.index(b"moov") < data.index(b"mdat")
    return data


async def decode_path(
    path: Path, data: bytes, audio_decoders: AudioDecoderPool, read: ReadProgress | None = None
) -> np.ndarray:
    await asyncio.to_thread(path.write_bytes, data)
    parts = [samples async for samples in decode_file(path, AudioFormat(), 1, audio_decoders, read)]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(("form", "codec"), [("mp4", "aac"), ("mov", "pcm_s16le"), ("ipod", "alac")])
async def test_the_position_of_the_index_does_not_matter(audio_decoders, tmp_path, form, codec):
    first, last = index_first(form, codec), index_last(form, codec)
    streamed = await decode_all(AudioDecoder(None, mix=True, audio_decoders=audio_decoders), first, 777)
    assert streamed.shape[1] == pytest.approx(48000, abs=500) and np.abs(streamed).max() > 0.3
    for data in (first, last):
        np.testing.assert_array_equal(await decode_path(tmp_path / "file", data, audio_decoders), streamed)
    assert audio_decoders.children == 0


async def test_a_long_file_needs_little_memory_and_reports_progress(audio_decoders, tmp_path):
    path, read, shares, samples = tmp_path / "long.mov", ReadProgress(), [], 0
    path.write_bytes(encode_tone("mov", "pcm_s16le", "7.1", seconds=100.0))
    size = path.stat().st_size
    assert size > audio_decoders.limits.memory_mb * 1024 * 1024
    async for part in decode_file(path, AudioFormat(), 1, audio_decoders, read):
        samples += part.shape[1]
        shares.append(read.bytes / size)
    assert samples == 100 * 16000
    assert shares == sorted(shares) and shares[0] < 0.05 and shares[-1] > 0.95


async def test_channels_are_counted_with_the_index_at_either_end(audio_decoders, tmp_path):
    for movflags in (None, "faststart"):
        data = encode_tone("mp4", "aac", layout="stereo", seconds=0.5, movflags=movflags)
        (tmp_path / "two.m4a").write_bytes(data)
        assert await channels_of(tmp_path / "two.m4a", AudioFormat(multichannel=True), audio_decoders) == 2
    assert audio_decoders.children == 0


def patch_table(data: bytes, table: bytes, offset: int, value: int) -> bytes:
    """Overwrite entries of a table in the index, from the table's byte `offset` on."""
    table_start = data.rindex(table) + 4
    end = table_start - 8 + int.from_bytes(data[table_start - 8 : table_start - 4], "big")
    patched = bytearray(data)
    for position in range(table_start + offset, min(end, table_start + offset + 400), 4):
        patched[position : position + 4] = value.to_bytes(4, "big")
    return bytes(patched)


DAMAGE = {
    "truncated before the index": lambda data: data[: data.index(b"moov") - 4],
    "truncated in the index": lambda data: data[: data.index(b"moov") + 200],
    "offsets beyond the end": lambda data: patch_table(data, b"stco", 8, 0xFFFFFFF0),
    "huge offset table": lambda data: patch_table(data, b"stco", 4, 0xFFFFFFFF),
    "huge size table": lambda data: patch_table(data, b"stsz", 4, 0x7FFFFFFF),
    "no index": lambda data: data.replace(b"moov", b"junk"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_broken_index_is_a_clear_error(audio_decoders, tmp_path, damage):
    data = DAMAGE[damage](index_last())
    with pytest.raises(ServiceError, match="cannot be decoded") as error:
        await decode_path(tmp_path / "file", data, audio_decoders)
    assert error.value.code == "audio" and "Errno" not in error.value.message
    assert audio_decoders.children == 0
    assert (await decode_path(tmp_path / "file", index_last(), audio_decoders)).shape[1] > 47000


async def test_the_intact_part_of_a_truncated_file_is_decoded(audio_decoders, tmp_path):
    data = index_first()
    assert (await decode_path(tmp_path / "file", data[: len(data) // 2], audio_decoders)).shape[1] > 15_000


async def test_a_stream_with_its_index_at_the_end_is_an_error_with_advice(audio_decoders):
    with pytest.raises(ServiceError, match="upload it as a file") as error:
        await decode_all(AudioDecoder("mp4", mix=True, audio_decoders=audio_decoders), index_last(), 5000)
    assert error.value.code == "audio"
    assert audio_decoders.children == 0


@pytest.mark.parametrize("name", CASES)
async def test_files_and_streams_give_the_same_samples(audio_decoders, tmp_path, name):
    data = encode_tone(*CASES[name])
    streamed = await decode_all(AudioDecoder(None, mix=True, audio_decoders=audio_decoders), data, 5000)
    np.testing.assert_array_equal(await decode_path(tmp_path / "file", data, audio_decoders), streamed)


async def test_a_decoder_has_its_file_open_read_only(audio_decoders, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(index_last("mov", "pcm_s16le", seconds=60.0))
    with path.open("rb") as file:
        decoder = audio_decoders.open("mp4", 1, True, file)
    blocks = decoder.finish()
    await anext(blocks)
    limits, descriptors = limits_of(decoder._pid)
    assert "Max open files            0                    0" in limits
    assert descriptors == ["0", "1", "2", "3", "4"]
    process = Path(f"/proc/{decoder._pid}")
    assert (process / "fd/4").resolve() == path
    flags = (process / "fdinfo/4").read_text().split("flags:")[1].split()[0]
    assert int(flags, 8) & 3 == 0  # O_RDONLY
    await blocks.aclose()
    decoder.close()
    assert audio_decoders.children == 0


async def test_closing_the_iterator_ends_the_decoder(audio_decoders, tmp_path):
    (tmp_path / "file").write_bytes(index_last("mov", "pcm_s16le", seconds=60.0))
    blocks = decode_file(tmp_path / "file", AudioFormat(), 1, audio_decoders)
    await anext(blocks)
    assert audio_decoders.children == 1
    await blocks.aclose()
    assert audio_decoders.children == 0


async def test_a_read_error_is_an_os_error(audio_decoders, tmp_path):
    with (tmp_path / "file").open("wb") as file:  # reading a descriptor that is open for writing fails
        decoder = audio_decoders.open("mp4", 1, True, file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await anext(decoder.finish())
    assert audio_decoders.children == 0
