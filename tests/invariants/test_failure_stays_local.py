"""Failure stays local: one stream's bad sound, one dead or hung worker harms nobody else; the rest is replayed."""

import asyncio
import contextlib
import os
import signal

import numpy as np
import pytest

from service.recognizer import Recognizer, Stream, StreamSettings
from service.scheduling import decode_pool, engine
from service.scheduling.executors import ProcessExecutor
from service.session.events import Closed, Event, Failed
from tests.invariants.streaming import Samples, check_committed_prefix_grows, collect, results, stream_through

SETTINGS = StreamSettings()


async def test_a_stream_of_nans_fails_and_its_neighbours_do_not(
    live_recognizer: Recognizer, sound: Samples
) -> None:
    poisoned = sound.copy()
    poisoned[0, 100_000:100_050] = np.nan
    infinite = sound.copy()
    infinite[0, 50_000] = np.inf
    alone = results(await stream_through(live_recognizer, sound, SETTINGS))
    told = await asyncio.gather(
        stream_through(live_recognizer, sound, SETTINGS),
        transcribe_alone(live_recognizer, poisoned),
        stream_through(live_recognizer, sound, SETTINGS),
        transcribe_alone(live_recognizer, infinite),
    )
    assert results(told[0]) == results(told[2]) == alone
    for events in (told[1], told[3]):
        assert isinstance(events[-2], Failed) and events[-2].code == "audio" and events[-2].advice
        assert isinstance(events[-1], Closed) and events[-1].reason == "failed"


async def transcribe_alone(live_recognizer: Recognizer, samples: Samples) -> list[Event]:
    """Push until refused, and read to the end."""
    stream = live_recognizer.open(SETTINGS)
    reader = asyncio.ensure_future(collect(stream))
    try:
        for at in range(0, samples.shape[1], 3200):
            await stream.push(samples[:, at : at + 3200])
        await stream.finish()
    except Exception as error:
        assert getattr(error, "code", "") == "closed", error
    return await reader


def engine_pids(live_recognizer: Recognizer) -> list[int]:
    return [
        executor.process.pid
        for executor in live_recognizer.device.engine.executors
        if isinstance(executor, ProcessExecutor) and executor.process.pid
    ]


def decoder_pids(live_recognizer: Recognizer) -> list[int]:
    return [
        each.process.pid
        for each in live_recognizer.device.decoders.workers
        if each.process and each.process.pid
    ]


def send(pid: int, what: signal.Signals) -> None:
    """To a worker, unless it has ended and nobody has noticed yet."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


async def until_ready(live_recognizer: Recognizer, executors: int = 2) -> None:
    async with asyncio.timeout(60):
        while not (live_recognizer.ready and len(live_recognizer.device.engine.executors) == executors):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("victim", ["engine", "decoder"])
async def test_a_killed_worker_is_replaced_and_no_client_notices(
    live_recognizer: Recognizer, sound: Samples, victim: str
) -> None:
    alone = results(await stream_through(live_recognizer, sound, SETTINGS))
    streams = [live_recognizer.open(SETTINGS) for _ in range(6)]
    readers = [asyncio.ensure_future(collect(stream)) for stream in streams]
    restarts = live_recognizer.metrics.worker_restarts.labels(
        kind={"engine": "engine", "decoder": "decode"}[victim]
    )
    before = restarts._value.get()

    async def feed(stream: Stream, number: int) -> None:
        for at in range(0, sound.shape[1], 8000):
            if number == 0 and at in (80_000, 160_000):
                pids = engine_pids(live_recognizer) if victim == "engine" else decoder_pids(live_recognizer)
                if pids:
                    send(pids[0], signal.SIGKILL)
            await stream.push(sound[:, at : at + 8000])
        await stream.finish()

    await asyncio.gather(*(feed(stream, number) for number, stream in enumerate(streams)))
    for events in await asyncio.gather(*readers):
        assert results(events) == alone
        check_committed_prefix_grows(events)
    assert restarts._value.get() > before
    await until_ready(live_recognizer)


@pytest.mark.parametrize("victim", ["engine", "decoder"])
async def test_a_hung_worker_is_replaced_too(
    live_recognizer: Recognizer, sound: Samples, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience is short only while those who hang are at work: a slow worker is no hung one."""
    await until_ready(live_recognizer)
    alone = results(await stream_through(live_recognizer, sound, SETTINGS))
    pids = engine_pids(live_recognizer) if victim == "engine" else decoder_pids(live_recognizer)
    for pid in pids:
        send(pid, signal.SIGSTOP)
    restarts = live_recognizer.metrics.worker_restarts.labels(kind={"decoder": "decode"}.get(victim, victim))
    before = restarts._value.get()
    with monkeypatch.context() as patch:
        patch.setattr(engine if victim == "engine" else decode_pool, "ANSWER_TIMEOUT_S", 0.5)
        listening = asyncio.ensure_future(stream_through(live_recognizer, sound, SETTINGS))
        running = live_recognizer.device.engine._running
        hung = len(pids) if victim == "engine" else 0
        while len(running) < hung or (not hung and restarts._value.get() == before):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert results(await listening) == alone
    assert restarts._value.get() >= before + len(pids)
    await until_ready(live_recognizer)


async def test_a_window_that_kills_every_worker_takes_only_its_own_stream_along(
    live_recognizer: Recognizer, sound: Samples
) -> None:
    """The deadly window is played by a lane that kills its own process when it is given that sound (stopped
    first: a fast worker would have answered before the kill)."""
    await until_ready(live_recognizer)
    alone = results(await stream_through(live_recognizer, sound, SETTINGS))
    deadly = sound.copy()
    deadly[0, 32_000] = 0.987654
    original = ProcessExecutor.run

    def run(executor: ProcessExecutor, number: int, windows: list[object]) -> None:
        kills = any((window.samples == np.float32(0.987654)).any() for window in windows)  # type: ignore[attr-defined]
        if kills and executor.process.pid is not None:
            os.kill(executor.process.pid, signal.SIGSTOP)
        original(executor, number, windows)  # type: ignore[arg-type]
        if kills:
            executor.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessExecutor, "run", run)
        told = await asyncio.gather(
            stream_through(live_recognizer, sound, SETTINGS),
            transcribe_alone(live_recognizer, deadly),
            stream_through(live_recognizer, sound, SETTINGS),
        )
    assert results(told[0]) == results(told[2]) == alone
    assert isinstance(told[1][-2], Failed)
    assert "worker died" in told[1][-2].message
    await until_ready(live_recognizer)


async def test_hotwords_that_cannot_be_spelled_are_refused_before_anything_starts(
    live_recognizer: Recognizer,
) -> None:
    from lm.search.hotwords import Hotword
    from service.errors import ServiceError

    with pytest.raises(ServiceError, match="22") as refused:
        live_recognizer.open(StreamSettings(hotwords=(Hotword("22", 5.0),)))
    assert refused.value.code == "hotwords"
