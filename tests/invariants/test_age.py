"""Age: minute sixty of a stream costs what minute one cost, in kept state and in work."""

import asyncio
import sys
from collections.abc import Iterator

import numpy as np

from service.recognizer import Recognizer, StreamSettings
from service.session.messages import AudioReceived, Finish
from service.session.session import Session
from tests.invariants.streaming import Samples, collect
from tests.session.synchronous_driver import TINY, SynchronousDriver, spelling_model


def size_of(thing: object, seen: set[int]) -> int:
    """Bytes of a value and everything it holds."""
    if id(thing) in seen or isinstance(thing, type) or callable(thing):
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes if thing.base is None else size_of(thing.base, seen)
    return sys.getsizeof(thing) + sum(size_of(part, seen) for part in parts(thing))


def parts(thing: object) -> Iterator[object]:
    if isinstance(thing, dict):
        yield from thing.keys()
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset) or type(thing).__name__ in (
        "deque",
        "OrderedDict",
    ):
        yield from thing  # type: ignore[misc]
    elif hasattr(thing, "__dict__"):
        yield from vars(thing).values()
    elif hasattr(thing, "__slots__"):
        yield from (getattr(thing, name) for name in thing.__slots__ if hasattr(thing, name))


def kept_bytes(session: Session) -> int:
    return size_of(session, set())


def stream_frames(frame: int) -> str | None:
    """Six seconds of letters, then a pause, and again."""
    return "abcdef "[frame // 4 % 7] if frame % 4 == 0 and frame % 350 < 300 else None


def test_an_hour_of_one_session_keeps_no_more_than_a_minute() -> None:
    loop = SynchronousDriver(spelling_model(stream_frames), StreamSettings(decoder="greedy"))
    second = np.zeros((1, 16000), np.float32)
    sizes, pushes = [], []
    for minute in range(60):
        for _ in range(60):
            loop.take(AudioReceived(second))
        sizes.append(kept_bytes(loop.session))
        pushes.append(loop.session.last_serial)
        loop.events.clear()
        del minute
    loop.take(Finish())
    assert max(sizes[30:]) <= max(sizes[:5]) * 1.05
    work = np.diff(pushes)
    # Speech and minutes do not divide evenly: which words a minute holds differs by a few commands.
    assert work[30:].max() <= work[:5].max() * 1.02, "commands to the decoder, a minute"
    assert TINY.name == "tiny"


async def test_an_old_stream_and_its_house_keep_no_more(live_recognizer: Recognizer, sound: Samples) -> None:
    stream = live_recognizer.open(StreamSettings(priority="batch"))
    reader = asyncio.ensure_future(collect(stream))
    sizes = []
    for _ in range(12):
        await stream.push(sound)
        # Whatever is just on its way differs from moment to moment.
        await stream.wait_processed(60)
        sizes.append(
            size_of([stream.session, stream._ready_s, stream._serial_ready_s, stream._buffered], set())
        )
        sizes[-1] += size_of(live_recognizer.device.engine._tasks, set())
    await stream.finish()
    events = await reader
    assert max(sizes[6:]) <= max(sizes[:4]) * 1.1
    assert len(list(stream._log)) <= 512
    assert not stream._ready_s and not stream._serial_ready_s
    assert len(events) > 50
