"""MP4 files over HTTP, in a job and as a stream, with the index (moov) at the beginning or at the end."""

import contextlib
import tempfile
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest

from service.http.jobs import JOB_API
from service.http.server import Server
from tests.http.conftest import ListenClient
from tests.http.test_jobs import post, send, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


def m4a(speech: bytes, **options: str) -> bytes:
    """An AAC file; without options its index is at the end."""
    samples = np.frombuffer(speech, "<i2").astype(np.float32) / 32768
    # On disk, since libav opens the file again to move the index to the beginning.
    with tempfile.NamedTemporaryFile() as file, av.open(file.name, "w", "mp4", options) as target:
        stream = target.add_stream("aac", rate=16000, layout="mono")
        for start in range(0, len(samples), 1024):
            block = np.pad(samples[start : start + 1024], (0, max(0, start + 1024 - len(samples))))
            frame = av.AudioFrame.from_ndarray(block[None], format="fltp", layout="mono")
            frame.sample_rate = 16000
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
        target.close()
        return file.read()


def words(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["results"]["channels"][0]["alternatives"][0]["words"]
    return found


async def test_the_position_of_the_index_does_not_change_the_transcript(
    server: Server, speech: bytes
) -> None:
    first, last = m4a(speech, movflags="faststart"), m4a(speech)
    assert first.index(b"moov") < first.index(b"mdat") and last.index(b"mdat") < last.index(b"moov")
    answers = [await post(server, data) for data in (first, last)]
    assert [status for status, _, _ in answers] == [200, 200]
    transcripts = [words(document) for _, _, document in answers]
    assert transcripts[0] and transcripts[0] == transcripts[1]


async def test_a_file_truncated_before_its_index_is_refused(server: Server, speech: bytes) -> None:
    data = m4a(speech)
    status, _, received = await post(server, data[: data.index(b"moov")])
    assert status == 400 and "cannot be decoded" in received["err_msg"]


async def test_a_job_reads_a_file_with_its_index_at_the_end(server: Server, speech: bytes) -> None:
    store = server.app[JOB_API].store
    job = await send(server, m4a(speech))
    done = await until(store, job["id"], lambda now: now.status not in ("queued", "running"))
    assert done.status == "done" and done.share == 1.0
    assert done.length_s == pytest.approx(2.1, abs=0.1) and store.finals(job["id"])


async def test_a_stream_with_its_index_at_the_end_is_refused_with_advice(
    server: Server,
    open_client: Callable[..., contextlib.AbstractAsyncContextManager[ListenClient]],
    speech: bytes,
) -> None:
    async with open_client(server, "extensions=true") as client:
        await client.send(m4a(speech * 20), {"type": "CloseStream"})
        code, reason = await client.read_to_end()
    assert code == 1008 and reason.startswith("DATA-0000")
    assert "upload it as a file" in client.messages_of("Error")[0]["message"]
