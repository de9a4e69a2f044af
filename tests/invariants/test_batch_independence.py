"""Company: who else shares the batch, and how full the machine is, never changes a word."""

import asyncio

import numpy as np
import pytest

from service.recognizer import Recognizer, StreamSettings
from tests.invariants.streaming import (
    Samples,
    check_committed_prefix_grows,
    collect,
    results,
    stream_through,
    texts,
)


async def test_alone_or_in_a_crowd(recognizer: Recognizer, audio: Samples) -> None:
    settings = StreamSettings(n_best=3)
    alone = [await stream_through(recognizer, shifted(audio, number), settings) for number in range(4)]
    crowd = await asyncio.gather(
        *(
            stream_through(
                recognizer,
                shifted(audio, number % 4),
                settings,
                cuts=range(800 * (number % 5 + 1), audio.shape[1], 800 * (number % 5 + 1)),
            )
            for number in range(24)
        )
    )
    for number, events in enumerate(crowd):
        assert results(events) == results(alone[number % 4])
        check_committed_prefix_grows(events)


async def test_files_and_live_hear_the_same(recognizer: Recognizer, audio: Samples) -> None:
    live = StreamSettings()
    file = StreamSettings(priority="batch", faster_than_realtime=True)
    both = await asyncio.gather(
        stream_through(recognizer, audio, live), stream_through(recognizer, audio, file)
    )
    assert results(both[0]) == results(both[1])


async def test_any_hop_hears_the_same(recognizer: Recognizer, audio: Samples) -> None:
    told = []
    for hop_s in (0.16, 0.32, 0.64, 1.28):
        recognizer.pin_hop(hop_s)
        try:
            told.append(
                results(await stream_through(recognizer, audio, StreamSettings(), range(3200, 320000, 3200)))
            )
        finally:
            recognizer.pin_hop(None)
    assert all(each == told[0] for each in told)


async def test_channels_are_company_too(recognizer: Recognizer, audio: Samples) -> None:
    other = shifted(audio, 1)
    together = await stream_through(recognizer, np.concatenate([audio, other]), StreamSettings(channels=2))
    apart = [await stream_through(recognizer, each, StreamSettings()) for each in (audio, other)]
    for channel in (0, 1):
        mine = [(each[0], *each[2:]) for each in results(together) if each[1] == channel]
        alone = [(each[0], *each[2:]) for each in results(apart[channel]) if each[1] == 0]
        assert mine == alone


def shifted(audio: Samples, number: int) -> Samples:
    return np.roll(audio, 31_337 * number, axis=1)


async def test_what_came_in_a_burst_is_heard_without_more_sound(
    recognizer: Recognizer, audio: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stream is behind its windows are wide; what is left over is not kept waiting for the next message."""
    monkeypatch.setattr(recognizer, "hop_frames", lambda widest: recognizer._hops[1.28 if widest else 0.16])
    settings, hop_s, look_ahead_s, frames_s = StreamSettings(), 0.16, 0.1, 0.05
    for seconds in (1.5, 2, 3, 4.5):
        burst = audio[:, : int(seconds * 16_000)]
        stream = recognizer.open(settings)
        reader = asyncio.ensure_future(collect(stream))
        try:
            await stream.push(burst)
            await stream.wait_until_processed(60)
            assert stream.session.processed_samples / 16_000 >= seconds - hop_s - look_ahead_s - frames_s
        finally:
            await stream.finish()
        assert texts(await reader) == texts(await stream_through(recognizer, burst, settings))
