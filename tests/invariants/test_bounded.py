"""Bounded: every queue has a limit, and what happens there is said."""

import asyncio

import numpy as np
import pytest

from service import stream as stream_module
from service.errors import ServiceError
from service.recognizer import Recognizer, StreamSettings
from service.session.events import Closed, Failed
from service.session.messages import Effect, Input, PushFrames
from service.session.segmenter import LEAD_FRAMES
from service.stream import FILE_CREDIT, LIVE_CREDIT, MAX_MARKERS
from tests.invariants.streaming import Samples, collect


@pytest.mark.parametrize(("priority", "credit"), [("live", LIVE_CREDIT), ("batch", FILE_CREDIT)])
async def test_sound_faster_than_it_is_heard_waits_outside(
    live_recognizer: Recognizer, sound: Samples, priority: str, credit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = live_recognizer.open(StreamSettings(priority=priority))  # type: ignore[arg-type]
    reader = asyncio.ensure_future(collect(stream))
    # With less than the credit in flight one piece more is taken: what was kept for a wider hop is one window, the
    # piece two of the narrowest, and two pauses in it may cut one short each.
    windows = credit - 1 + 1 + 2 + 2
    # What they bring to the decoder are their frames, each once, and a lead of earlier ones.
    frames = (
        windows * max(live_recognizer._hops.values()) // live_recognizer.device.config.frames_per_output
        + LEAD_FRAMES
    )
    max_windows = max_frames = 0
    session, take, channel = stream.session, stream.session.take, stream.session.channels[0]

    def watched(what: Input) -> list[Effect]:
        nonlocal max_windows, max_frames
        effects = take(what)
        max_windows = max(
            max_windows, session.windows_at_engine + channel.waiting_windows + channel.out_of_order_windows
        )
        at_decoder = sum(len(each.log_probs) for each in session.outstanding if isinstance(each, PushFrames))
        max_frames = max(max_frames, at_decoder)
        return effects

    monkeypatch.setattr(session, "take", watched)
    await stream.push(np.tile(sound, 10))
    assert 0 < max_windows <= windows
    assert 0 < max_frames <= frames
    await stream.finish()
    await reader


async def test_streams_beyond_the_capacity_are_refused_with_a_reason(
    live_recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_recognizer, "_stream_capacity", lambda: 3)
    assert live_recognizer.capacity().streams == 0
    streams = [live_recognizer.open(StreamSettings()) for _ in range(3)]
    with pytest.raises(ServiceError, match="All 3 streams") as refused:
        live_recognizer.open(StreamSettings())
    assert refused.value.code == "capacity" and refused.value.retry_after_s
    streams.pop().cancel()
    streams.append(live_recognizer.open(StreamSettings()))
    with pytest.raises(ServiceError):
        live_recognizer.open(StreamSettings(channels=2))
    for stream in streams:
        stream.cancel()
    assert live_recognizer.capacity().streams == 0


async def test_more_parked_streams_than_the_limit_close_the_oldest(
    live_recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.setattr(live_recognizer, "options", replace(live_recognizer.options, parked_limit=2))
    streams = [live_recognizer.open(StreamSettings()) for _ in range(3)]
    for stream in streams:
        live_recognizer.park(stream)
    assert (await collect(streams[0]))[-1] == Closed("lost", 0.0)
    assert live_recognizer.capacity().parked == 2
    for stream in streams[1:]:
        live_recognizer.resume(stream.id).cancel()


async def test_marks_have_a_limit(live_recognizer: Recognizer, sound: Samples) -> None:
    stream = live_recognizer.open(StreamSettings())
    await stream.push(sound[:, :400])
    with pytest.raises(ServiceError) as refused:
        for number in range(MAX_MARKERS + 1):
            await stream.mark(str(number))
    assert refused.value.code == "marks"
    stream.cancel()


async def test_a_reader_that_takes_nothing_is_told_and_closed(
    live_recognizer: Recognizer, sound: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = live_recognizer.open(StreamSettings(endpointing_ms=10, max_utterance_s=0.2))
    monkeypatch.setattr(stream._log, "_max_unread", 20)
    with pytest.raises(ServiceError):
        for _ in range(100):
            await stream.push(sound)
    events = await collect(stream)
    assert isinstance(events[-2], Failed) and events[-2].code == "slow_reader"
    assert isinstance(events[-1], Closed)


async def test_finalizes_without_sound_between_them_are_one(
    live_recognizer: Recognizer, sound: Samples
) -> None:
    stream = live_recognizer.open(StreamSettings())
    reader = asyncio.ensure_future(collect(stream))
    await stream.push(sound[:, :32_000])
    for _ in range(1000):
        await stream.finalize()
    assert len(stream.session.channels[0]._segments) <= 2
    await stream.finish()
    answered = [event for event in await reader if getattr(event, "from_finalize", False)]
    assert len(answered) == 1


async def test_wrong_sound_is_refused_in_words(live_recognizer: Recognizer) -> None:
    stream = live_recognizer.open(StreamSettings(channels=2))
    for wrong in (np.zeros((1, 5), np.float32), np.zeros(5, np.float32), np.zeros((2, 5), np.int16)):
        with pytest.raises(ServiceError, match="Expected float32"):
            await stream.push(wrong)
    stream.cancel()
    with pytest.raises(ServiceError, match="no more sound"):
        await stream.push(np.zeros((2, 5), np.float32))
    assert stream_module.PIECE_SAMPLES <= 16000
