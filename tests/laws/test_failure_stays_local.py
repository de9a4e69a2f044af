"""Failure stays local: one stream's bad sound, one dead or hung worker harms nobody else; the rest is replayed."""

import asyncio
import contextlib
import os
import signal

import numpy as np
import pytest

from service.core.events import Closed, Event, Failed
from service.scheduling import decoding, engine
from service.scheduling.lanes import ProcessLane
from service.streams import Recogniser, Stream, StreamSettings
from tests.laws.streaming import Samples, check_past_is_fixed, collect, heard, listen

SETTINGS = StreamSettings()


async def test_a_stream_of_nans_fails_and_its_neighbours_do_not(
    recogniser: Recogniser, sound: Samples
) -> None:
    poisoned = sound.copy()
    poisoned[0, 100_000:100_050] = np.nan
    infinite = sound.copy()
    infinite[0, 50_000] = np.inf
    alone = heard(await listen(recogniser, sound, SETTINGS))
    told = await asyncio.gather(
        listen(recogniser, sound, SETTINGS),
        quietly(recogniser, poisoned),
        listen(recogniser, sound, SETTINGS),
        quietly(recogniser, infinite),
    )
    assert heard(told[0]) == heard(told[2]) == alone
    for events in (told[1], told[3]):
        assert isinstance(events[-2], Failed) and events[-2].code == "audio" and events[-2].advice
        assert isinstance(events[-1], Closed) and events[-1].reason == "failed"


async def quietly(recogniser: Recogniser, samples: Samples) -> list[Event]:
    """Push until refused, and read to the end."""
    stream = recogniser.open(SETTINGS)
    reader = asyncio.ensure_future(collect(stream))
    try:
        for at in range(0, samples.shape[1], 3200):
            await stream.push(samples[:, at : at + 3200])
        await stream.finish()
    except Exception as error:
        assert getattr(error, "code", "") == "closed", error
    return await reader


def engine_pids(recogniser: Recogniser) -> list[int]:
    return [
        lane.process.pid
        for lane in recogniser.device.engine.lanes
        if isinstance(lane, ProcessLane) and lane.process.pid
    ]


def decoder_pids(recogniser: Recogniser) -> list[int]:
    return [
        each.process.pid for each in recogniser.device.decoders.workers if each.process and each.process.pid
    ]


def send(pid: int, what: signal.Signals) -> None:
    """To a worker, unless it has ended and nobody has noticed yet."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


async def until_ready(recogniser: Recogniser, lanes: int = 2) -> None:
    async with asyncio.timeout(60):
        while not (recogniser.ready and len(recogniser.device.engine.lanes) == lanes):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("victim", ["engine", "decoder"])
async def test_a_killed_worker_is_replaced_and_no_client_notices(
    recogniser: Recogniser, sound: Samples, victim: str
) -> None:
    alone = heard(await listen(recogniser, sound, SETTINGS))
    streams = [recogniser.open(SETTINGS) for _ in range(6)]
    readers = [asyncio.ensure_future(collect(stream)) for stream in streams]
    restarts = recogniser.metrics.worker_restarts.labels(
        kind={"engine": "engine", "decoder": "decode"}[victim]
    )
    before = restarts._value.get()

    async def feed(stream: Stream, number: int) -> None:
        for at in range(0, sound.shape[1], 8000):
            if number == 0 and at in (80_000, 160_000):
                pids = engine_pids(recogniser) if victim == "engine" else decoder_pids(recogniser)
                if pids:
                    send(pids[0], signal.SIGKILL)
            await stream.push(sound[:, at : at + 8000])
        await stream.finish()

    await asyncio.gather(*(feed(stream, number) for number, stream in enumerate(streams)))
    for events in await asyncio.gather(*readers):
        assert heard(events) == alone
        check_past_is_fixed(events)
    assert restarts._value.get() > before
    await until_ready(recogniser)


@pytest.mark.parametrize("victim", ["engine", "decoder"])
async def test_a_hung_worker_is_replaced_too(
    recogniser: Recogniser, sound: Samples, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience is short only while those who hang are at work: a slow worker is no hung one."""
    await until_ready(recogniser)
    alone = heard(await listen(recogniser, sound, SETTINGS))
    pids = engine_pids(recogniser) if victim == "engine" else decoder_pids(recogniser)
    for pid in pids:
        send(pid, signal.SIGSTOP)
    restarts = recogniser.metrics.worker_restarts.labels(kind={"decoder": "decode"}.get(victim, victim))
    before = restarts._value.get()
    with monkeypatch.context() as patch:
        patch.setattr(engine if victim == "engine" else decoding, "OVERDUE_S", 0.5)
        listening = asyncio.ensure_future(listen(recogniser, sound, SETTINGS))
        running = recogniser.device.engine._running
        hung = len(pids) if victim == "engine" else 0
        while len(running) < hung or (not hung and restarts._value.get() == before):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert heard(await listening) == alone
    assert restarts._value.get() >= before + len(pids)
    await until_ready(recogniser)


async def test_a_window_that_kills_every_worker_takes_only_its_own_stream_along(
    recogniser: Recogniser, sound: Samples
) -> None:
    """The deadly window is played by a lane that kills its own process when it is given that sound (stopped
    first: a fast worker would have answered before the kill)."""
    await until_ready(recogniser)
    alone = heard(await listen(recogniser, sound, SETTINGS))
    deadly = sound.copy()
    deadly[0, 32_000] = 0.987654
    original = ProcessLane.run

    def run(lane: ProcessLane, number: int, windows: list[object]) -> None:
        kills = any((window.samples == np.float32(0.987654)).any() for window in windows)  # type: ignore[attr-defined]
        if kills and lane.process.pid is not None:
            os.kill(lane.process.pid, signal.SIGSTOP)
        original(lane, number, windows)  # type: ignore[arg-type]
        if kills:
            lane.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessLane, "run", run)
        told = await asyncio.gather(
            listen(recogniser, sound, SETTINGS),
            quietly(recogniser, deadly),
            listen(recogniser, sound, SETTINGS),
        )
    assert heard(told[0]) == heard(told[2]) == alone
    assert isinstance(told[1][-2], Failed)
    assert "worker died" in told[1][-2].message
    await until_ready(recogniser)


async def test_hotwords_that_cannot_be_spelled_are_refused_before_anything_starts(
    recogniser: Recogniser,
) -> None:
    from lm.hotwords import Hotword
    from service.errors import ServiceError

    with pytest.raises(ServiceError, match="22") as refused:
        recogniser.open(StreamSettings(hotwords=(Hotword("22", 5.0),)))
    assert refused.value.code == "hotwords"
