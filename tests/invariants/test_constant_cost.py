"""Constant cost: minute 60 of a stream costs as much memory and work as minute 1."""

import asyncio
import sys
from collections.abc import Iterator

import numpy as np

from service.recognizer import Recognizer, StreamSettings
from service.session.messages import AudioReceived, Finish
from service.session.session import Session
from tests.invariants.streaming import Samples, collect
from tests.session.synchronous_driver import SynchronousDriver, spelling_model


def size_of(item: object, seen: set[int]) -> int:
    """Bytes of an object and everything it references."""
    if id(item) in seen or isinstance(item, type) or callable(item):
        return 0
    seen.add(id(item))
    if isinstance(item, np.ndarray):
        return item.nbytes if item.base is None else size_of(item.base, seen)
    return sys.getsizeof(item) + sum(size_of(part, seen) for part in parts(item))


def parts(item: object) -> Iterator[object]:
    if isinstance(item, dict):
        yield from item.keys()
        yield from item.values()
    elif isinstance(item, list | tuple | set | frozenset) or type(item).__name__ in (
        "deque",
        "OrderedDict",
    ):
        yield from item  # type: ignore[misc]
    elif hasattr(item, "__dict__"):
        yield from vars(item).values()
    elif hasattr(item, "__slots__"):
        yield from (getattr(item, name) for name in item.__slots__ if hasattr(item, name))


def kept_bytes(session: Session) -> int:
    return size_of(session, set())


def character_at(frame: int) -> str | None:
    """Six seconds of characters, then a pause, repeated."""
    return "abcdef "[frame // 4 % 7] if frame % 4 == 0 and frame % 350 < 300 else None


def test_an_hour_of_a_session_keeps_no_more_than_a_minute() -> None:
    driver = SynchronousDriver(spelling_model(character_at), StreamSettings(decoder="greedy"))
    second = np.zeros((1, 16000), np.float32)
    sizes, pushes = [], []
    for _ in range(60):
        for _ in range(60):
            driver.handle(AudioReceived(second))
        sizes.append(kept_bytes(driver.session))
        pushes.append(driver.session.last_serial)
        driver.events.clear()
    driver.handle(Finish())
    assert max(sizes[30:]) <= max(sizes[:5]) * 1.05
    work = np.diff(pushes)
    # Speech and minutes do not divide evenly: the commands in a minute differ by a few.
    assert work[30:].max() <= work[:5].max() * 1.02, "decoder commands a minute"


async def test_a_long_stream_and_its_recognizer_keep_no_more(recognizer: Recognizer, audio: Samples) -> None:
    stream = recognizer.open(StreamSettings(priority="file"))
    reader = asyncio.ensure_future(collect(stream))
    sizes = []
    for _ in range(12):
        await stream.push(audio)
        # Work in flight varies: wait until it is done.
        await stream.wait_until_processed(60)
        sizes.append(
            size_of([stream.session, stream._ready_s, stream._serial_ready_s, stream._buffered], set())
        )
        sizes[-1] += size_of(recognizer.device.engine._tasks, set())
    await stream.finish()
    events = await reader
    assert max(sizes[6:]) <= max(sizes[:4]) * 1.1
    assert len(list(stream._event_log)) <= 512
    assert not stream._ready_s and not stream._serial_ready_s
    assert len(events) > 50
