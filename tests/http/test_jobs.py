"""Jobs and whole files when something happens to them: a stop, sound that fails, a client that leaves, its account."""

import asyncio
import contextlib
import gc
import io
import logging
import warnings
import wave
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from service.audio.decoder_pool import AudioDecoderPool
from service.auth.keys import add_key
from service.errors import ErrorCode, ServiceError
from service.http.app_state import APP_STATE
from service.http.jobs import JOB_API
from service.http.server import Server
from service.http.transcriptions import base_settings
from service.jobs import runner
from service.jobs.job import Job
from service.jobs.recordings import AudioFormat, decode_file, transcribe
from service.jobs.store import JobStore
from service.scheduling.served_models import ServedModels
from service.session.events import Closed
from service.settings import Settings
from service.stream import Stream
from tests.http.conftest import ServerFactory
from tests.http.test_auth_and_health import get

pytestmark = pytest.mark.asyncio(loop_scope="session")


def wav(speech: bytes, times: int) -> bytes:
    """The same two seconds again and again."""
    kept = io.BytesIO()
    with wave.open(kept, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(speech * times)
    return kept.getvalue()


async def send(server: Server, sound: bytes, **headers: str) -> dict[str, Any]:
    """POST /v1/jobs; the job."""
    form = aiohttp.FormData()
    form.add_field("file", io.BytesIO(sound), filename="talk.wav")
    address = f"{server.address}/v1/jobs"
    async with (
        aiohttp.ClientSession() as session,
        session.post(address, data=form, headers=headers) as answer,
    ):
        assert answer.status == 202, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def until(store: JobStore, id: str, so: Callable[[Job], bool], owner: str = "") -> Job:
    """The job, once it is so."""
    async with asyncio.timeout(120):
        while True:
            if so(job := store.find(id, owner)):
                return job
            await asyncio.sleep(0.02)


def batch_streams(models: ServedModels) -> list[Stream]:
    """Of recordings alone: other tests may have left sessions that could be resumed."""
    return [one for one in models.pick(None)._streams.values() if one.settings.priority == "batch"]


async def post(server: Server, sound: bytes) -> tuple[int, dict[str, str], Any]:
    address = f"{server.address}/v1/listen"
    async with aiohttp.ClientSession() as session, session.post(address, data=io.BytesIO(sound)) as answer:
        return answer.status, dict(answer.headers), await answer.json()


async def test_what_a_stop_breaks_off_waits_and_is_heard_whole_after_it(
    settings: Settings, tmp_path: Path, speech: bytes
) -> None:
    mine = replace(settings, jobs_folder=tmp_path / "jobs", max_utterance_s=5.0)
    sound = wav(speech, 150)
    async with Server(mine) as first:
        job = await send(first, sound)
        asked = asyncio.create_task(post(first, sound))
        await until(first.app[JOB_API].store, job["id"], lambda now: now.processed_s > 0)
        await first.stop(0.0)
        status, headers, received = await asked
    assert status == 503 and received["err_code"] == "DRAINING" and int(headers["Retry-After"]) > 0
    store = JobStore(tmp_path / "jobs")
    waiting = store.find(job["id"], "")
    assert (waiting.status, waiting.attempts, waiting.error) == ("queued", 0, None)
    assert waiting.processed_s < 300.0 and store.file(job["id"]).read_bytes() == sound
    store.close()
    async with Server(mine) as second:
        done = await until(
            second.app[JOB_API].store, job["id"], lambda now: now.status not in ("queued", "running")
        )
        finals = second.app[JOB_API].store.finals(job["id"])
    assert done.status == "done" and done.length_s == pytest.approx(300.0)
    places = [0.0, *(place for final in finals for place in (final.start_s, final.end_s)), 300.0]
    assert places == sorted(places) and finals[-1].end_s == pytest.approx(300.0, abs=0.1)
    assert max(end - start for start, end in zip(places[::2], places[1::2], strict=True)) < 0.1  # no gap


@pytest.mark.parametrize("trouble", [OSError(5, "Input/output error"), ValueError("a bug")])
async def test_sound_that_fails_in_any_way_ends_its_hearing(
    server: Server, models: ServedModels, trouble: Exception
) -> None:
    async def sound() -> AsyncIterator[np.ndarray]:
        yield np.zeros((1, 16000), np.float32)
        raise trouble

    expected = ServiceError if isinstance(trouble, OSError) else ValueError
    async with asyncio.timeout(60):
        with pytest.raises(expected) as received:
            async for _ in transcribe(models.pick(None), base_settings(server.app[APP_STATE]), sound()):
                pass
    if isinstance(received.value, ServiceError):
        assert received.value.code == "storage" and "Input/output error" in received.value.message
    assert not batch_streams(models)


async def test_a_recording_is_not_over_when_its_recognizer_is_stopped_while_it_waits_for_more(
    server: Server, models: ServedModels
) -> None:
    async def sound() -> AsyncIterator[np.ndarray]:
        yield np.zeros((1, 16000), np.float32)
        for stream in batch_streams(models):
            stream.drain()
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        with pytest.raises(ServiceError) as received:
            async for event in transcribe(models.pick(None), base_settings(server.app[APP_STATE]), sound()):
                assert not isinstance(event, Closed)
    assert received.value.code == "draining" and received.value.retry_after_s


async def test_a_job_that_is_cancelled_while_nothing_is_told_of_it_frees_its_runner(
    make_server: ServerFactory, tmp_path: Path, speech: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does one whose recording vanishes between being found and being read."""
    real, waits = runner.decode_file, asyncio.Event()

    async def stuck(*received: Any) -> AsyncIterator[np.ndarray]:
        waits.set()
        await asyncio.Event().wait()
        yield np.zeros((1, 0), np.float32)

    async def vanished(path: Path, *received: Any) -> AsyncIterator[np.ndarray]:
        store.end(path.name, None, "cancelled", 0.0, None, None)
        async for samples in real(path, *received):
            yield samples

    sound = wav(speech, 1)
    async with (
        make_server(jobs_folder=tmp_path, jobs_lease_s=0.5) as server,
        aiohttp.ClientSession() as session,
    ):
        store = server.app[JOB_API].store
        monkeypatch.setattr(runner, "decode_file", stuck)
        first = await send(server, sound)
        await waits.wait()
        monkeypatch.setattr(runner, "decode_file", vanished)
        second = await send(server, sound)
        async with session.delete(f"{server.address}/v1/jobs/{first['id']}") as answer:
            assert (await answer.json())["status"] == "cancelled"
        await until(store, second["id"], lambda now: now.status == "cancelled")
        monkeypatch.setattr(runner, "decode_file", real)
        third = await send(server, sound)
        await until(store, third["id"], lambda now: now.status == "done")


async def test_a_job_without_room_leaves_the_others_of_its_runner_alone(
    make_server: ServerFactory, tmp_path: Path, speech: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.decode_file
    begun: list[str] = []
    jobs: list[dict[str, Any]] = []

    async def crowded(path: Path, *received: Any) -> AsyncIterator[np.ndarray]:
        begun.append(path.name)
        if len(begun) == 2:
            raise ServiceError(ErrorCode.CONTAINERS, "All decoders are in use.", retry_after_s=0.1)
        async for samples in real(path, *received):
            yield samples

    monkeypatch.setattr(runner, "decode_file", crowded)
    async with make_server(jobs_folder=tmp_path, jobs_concurrency=2) as server:
        store = server.app[JOB_API].store
        jobs.append(await send(server, wav(speech, 100)))
        await until(store, jobs[0]["id"], lambda now: now.processed_s > 0)
        jobs.append(await send(server, wav(speech, 1)))
        for job in jobs:
            done = await until(store, job["id"], lambda now: now.status == "done")
            assert done.attempts == 1
    large, small = (job["id"] for job in jobs)
    assert begun == [large, small, small]


async def test_jobs_are_charged_to_their_owner_as_they_are_heard(
    make_server: ServerFactory, tmp_path: Path, keys_file: Path, speech: bytes
) -> None:
    key, secret = add_key(keys_file, "small", minutes_per_day=0.1)
    held = {"Authorization": f"Token {secret}"}
    async with make_server(jobs_folder=tmp_path, keys_file=keys_file) as server:
        usage, store = server.keys.usage, server.app[JOB_API].store
        assert usage is not None
        job = await send(server, wav(speech, 10), **held)
        await until(store, job["id"], lambda now: now.status == "done", key.id)
        assert usage.seconds(key.id) == pytest.approx(20.0, abs=0.01)
        with pytest.raises(AssertionError, match="has used its"):
            await send(server, wav(speech, 1), **held)


async def test_who_leaves_a_streamed_transcription_pays_for_what_was_heard_and_is_no_fault_of_the_server(
    make_server: ServerFactory, keys_file: Path, speech: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    key, secret = add_key(keys_file, "leaver")
    body = (
        b'--xx\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n'
        b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + wav(speech, 150)
        + b"\r\n--xx--\r\n"
    )
    async with make_server(keys_file=keys_file, max_utterance_s=3.0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        head += f"Authorization: Bearer {secret}\r\nContent-Type: multipart/form-data; boundary=xx\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        counted = 'route="/v1/audio/transcriptions",status="'
        while counted not in (received := (await get(f"{server.address}/metrics"))[2]):
            pass
        assert f'{counted}499"' in received
        assert server.keys.usage is not None and 2.0 < server.keys.usage.seconds(key.id) < 300.0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_file_name_that_is_no_utf_8_is_kept_as_far_as_it_can_be(
    make_server: ServerFactory, tmp_path: Path, speech: bytes
) -> None:
    head = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="caf\xe9.wav"\r\n\r\n'
    body = head + wav(speech, 1) + b"\r\n--xx--\r\n"
    named = {"Content-Type": "multipart/form-data; boundary=xx"}
    async with (
        make_server(jobs_folder=tmp_path) as server,
        aiohttp.ClientSession() as session,
        session.post(f"{server.address}/v1/jobs", data=body, headers=named) as answer,
    ):
        assert answer.status == 202 and (await answer.json())["name"] == "caf?.wav"


async def test_a_recording_given_up_while_it_is_opened_is_closed(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"sound")
    for turns in range(4):  # given up at every moment of its beginning
        piece = asyncio.ensure_future(
            anext(decode_file(tmp_path / "body", AudioFormat("linear16"), 1, AudioDecoderPool(0)))
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        piece.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await piece
    await asyncio.sleep(0.05)
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        gc.collect()
    assert not left_open
