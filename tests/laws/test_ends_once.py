"""Ends once: every accepted stream ends with exactly one Closed and one decrement, whatever happens to either side."""

import asyncio
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from service import streams
from service.core.events import Closed, Event, Failed
from service.errors import ErrorCode, ServiceError
from service.streams import Recogniser, Stream, StreamSettings
from tests.laws.streaming import Samples, check_past_is_fixed, collect, heard, listen, recogniser_of
from tests.laws.test_failure_stays_local import decoder_pids, engine_pids, send, until_ready


class Client:
    """Does to a stream, at random, what clients and networks do."""

    def __init__(self, recogniser: Recogniser, sound: Samples, rng: random.Random) -> None:
        self.recogniser, self.sound, self.rng = recogniser, sound, rng
        self.events: list[tuple[int, Event]] = []

    async def live(self) -> None:
        settings = StreamSettings(
            channels=self.rng.choice((1, 1, 2)),
            interim=self.rng.random() < 0.7,
            priority=self.rng.choice(("live", "live", "batch")),
            max_utterance_s=2,
        )
        stream = self.recogniser.open(settings)
        reader = asyncio.ensure_future(self.read(stream))
        try:
            for _ in range(self.rng.randrange(12)):
                reader = await self.act(stream, reader)
            await stream.finish()
        except ServiceError as error:
            assert error.code == "closed"
        if stream.id in self.recogniser._parked:
            self.recogniser.resume(stream.id)
            reader = asyncio.ensure_future(self.read(stream))
            await stream.finish()
        async with asyncio.timeout(60):
            await reader

    async def act(self, stream: Stream, reader: "asyncio.Future[None]") -> "asyncio.Future[None]":
        what = self.rng.choice(
            ("push",) * 6 + ("finalize", "mark", "drop", "park", "cancel", "fail", "kill", "nan")
        )
        if what == "push":
            at = self.rng.randrange(0, 200_000)
            piece = self.sound[:, at : at + self.rng.randrange(0, 20_000)]
            await stream.push(np.repeat(piece, stream.settings.channels, axis=0))
        elif what == "finalize":
            await stream.finalize()
        elif what == "mark":
            await stream.mark("m")
        elif what == "park":
            self.recogniser.park(stream)
            await reader
            await asyncio.sleep(0)
            self.recogniser.resume(stream.id)
            return asyncio.ensure_future(self.read(stream))
        elif what == "nan" and self.rng.random() < 0.2:
            await stream.push(np.full((stream.settings.channels, 4000), np.nan, np.float32))
        elif what == "cancel" and self.rng.random() < 0.3:
            stream.cancel()
        elif what == "fail" and self.rng.random() < 0.3:
            stream.fail(ErrorCode.INTERNAL, "broken", "mend it")
        elif what == "kill" and self.rng.random() < 0.1:
            pids = engine_pids(self.recogniser) + decoder_pids(self.recogniser)
            if pids:
                send(self.rng.choice(pids), signal.SIGKILL)
        return reader

    async def read(self, stream: Stream) -> None:
        after = self.events[-1][0] if self.events else 0
        async for entry in stream.numbered(after):
            self.events.append(entry)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens(recogniser: Recogniser, sound: Samples, seed: int) -> None:
    await until_ready(recogniser)
    open_before = recogniser.metrics.sessions_open._value.get()
    clients = [Client(recogniser, sound, random.Random(1000 * seed + number)) for number in range(20)]
    await asyncio.gather(*(client.live() for client in clients))
    for client in clients:
        numbers = [number for number, _ in client.events]
        assert numbers == sorted(set(numbers)), "in order, nothing repeated"
        check_past_is_fixed([event for _, event in client.events])
    assert recogniser.metrics.sessions_open._value.get() == open_before
    assert recogniser.capacity().streams == 0 and len(recogniser.device.engine.planner) == 0
    await until_ready(recogniser)


async def test_a_resumed_stream_has_lost_and_repeated_nothing(recogniser: Recogniser, sound: Samples) -> None:
    alone = heard(await listen(recogniser, sound, StreamSettings()))
    stream = recogniser.open(StreamSettings(owner="key"))
    seen: list[tuple[int, Event]] = []
    for at in range(0, sound.shape[1], 32_000):
        reader = asyncio.ensure_future(read_some(stream, seen))
        await stream.push(sound[:, at : at + 32_000])
        recogniser.park(stream)
        await reader
        # What was delivered but not seen is sent again, what was seen is not.
        del seen[max(0, len(seen) - 2) :]
        with pytest.raises(ServiceError):
            recogniser.resume(stream.id, owner="somebody else")
        assert recogniser.resume(stream.id, "key", seen[-1][0] if seen else 0) is stream
        assert stream.received_samples == min(at + 32_000, sound.shape[1])
    await stream.finish()
    await read_some(stream, seen)
    assert heard([event for _, event in seen]) == alone


async def read_some(stream: Stream, seen: list[tuple[int, Event]]) -> None:
    async for entry in stream.numbered(seen[-1][0] if seen else 0):
        seen.append(entry)


async def test_a_lost_client_is_closed_when_its_time_is_over(recogniser: Recogniser, sound: Samples) -> None:
    stream = recogniser.open(StreamSettings())
    await stream.push(sound[:, :32_000])
    recogniser.park(stream)
    recogniser._parked[stream.id] = (stream, 0.0)  # its thirty seconds are over
    async with asyncio.timeout(10):
        while not stream.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    events = await collect(stream)
    assert events[-1] == Closed("lost", 2.0)
    with pytest.raises(ServiceError, match="unknown"):
        recogniser.resume(stream.id)


async def test_silence_beyond_the_limit_is_said_and_closed(recogniser: Recogniser) -> None:
    stream = recogniser.open(StreamSettings(idle_limit_s=0.05))
    events = await collect(stream)
    assert [type(event).__name__ for event in events] == ["Started", "Failed", "Closed"]
    assert isinstance(events[1], Failed) and events[1].code == "idle"


async def test_while_the_server_stood_still_nobody_was_silent(recogniser: Recogniser) -> None:
    """A machine that slept, or was held up, comes back to clients whose messages it has not read yet."""
    stream, parked = (recogniser.open(StreamSettings(idle_limit_s=10.0)) for _ in range(2))
    recogniser.park(parked)

    def sweep() -> None:
        assert recogniser._sweeper is not None
        recogniser._sweeper.cancel()
        recogniser._sweep()

    stream.last_life_s -= 100
    recogniser._parked[parked.id] = (parked, recogniser.now_s() - 70)
    recogniser._sweep_at_s -= 100
    sweep()
    assert not stream.closed and not parked.closed
    stream.last_life_s -= 100
    recogniser._parked[parked.id] = (parked, recogniser.now_s() - 70)
    sweep()
    assert stream.closed and parked.closed


async def test_stopping_delivers_what_is_open(
    babbler: Path, sound: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_S", 100.0)
    own = recogniser_of(babbler, tmp_path)
    await own.start()
    open_stream, parked = own.open(StreamSettings()), own.open(StreamSettings())
    for stream in (open_stream, parked):
        await stream.push(sound[:, :64_000])
    own.park(parked)
    stopping = asyncio.ensure_future(own.stop(drain_s=0.05))
    await asyncio.sleep(0)
    assert not own.ready
    with pytest.raises(ServiceError) as refused:
        own.open(StreamSettings())
    assert refused.value.code == "draining" and refused.value.retry_after_s
    await stopping
    for stream in (open_stream, parked):
        events = await collect(stream)
        assert events[-1] == Closed("drained", 4.0)
        assert any(type(event).__name__ == "Final" for event in events)
