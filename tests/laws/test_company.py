"""Company: who else shares the batch, and how full the machine is, never changes a word."""

import asyncio

import numpy as np
import pytest

from service.streams import Recogniser, StreamSettings
from tests.laws.streaming import Samples, check_past_is_fixed, collect, heard, listen, texts


async def test_alone_or_in_a_crowd(recogniser: Recogniser, sound: Samples) -> None:
    settings = StreamSettings(n_best=3)
    alone = [await listen(recogniser, shifted(sound, number), settings) for number in range(4)]
    crowd = await asyncio.gather(
        *(
            listen(
                recogniser,
                shifted(sound, number % 4),
                settings,
                cuts=range(800 * (number % 5 + 1), sound.shape[1], 800 * (number % 5 + 1)),
            )
            for number in range(24)
        )
    )
    for number, events in enumerate(crowd):
        assert heard(events) == heard(alone[number % 4])
        check_past_is_fixed(events)


async def test_files_and_live_hear_the_same(recogniser: Recogniser, sound: Samples) -> None:
    live = StreamSettings()
    file = StreamSettings(priority="batch", declared_file=True)
    both = await asyncio.gather(listen(recogniser, sound, live), listen(recogniser, sound, file))
    assert heard(both[0]) == heard(both[1])


async def test_any_hop_hears_the_same(recogniser: Recogniser, sound: Samples) -> None:
    told = []
    for hop_s in (0.16, 0.32, 0.64, 1.28):
        recogniser.hold_hop(hop_s)
        try:
            told.append(heard(await listen(recogniser, sound, StreamSettings(), range(3200, 320000, 3200))))
        finally:
            recogniser.hold_hop(None)
    assert all(each == told[0] for each in told)


async def test_channels_are_company_too(recogniser: Recogniser, sound: Samples) -> None:
    other = shifted(sound, 1)
    together = await listen(recogniser, np.concatenate([sound, other]), StreamSettings(channels=2))
    apart = [await listen(recogniser, each, StreamSettings()) for each in (sound, other)]
    for channel in (0, 1):
        mine = [(each[0], *each[2:]) for each in heard(together) if each[1] == channel]
        alone = [(each[0], *each[2:]) for each in heard(apart[channel]) if each[1] == 0]
        assert mine == alone


def shifted(sound: Samples, number: int) -> Samples:
    return np.roll(sound, 31_337 * number, axis=1)


async def test_what_came_in_a_burst_is_heard_without_more_sound(
    recogniser: Recogniser, sound: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stream is behind its windows are wide; what is left over is not kept waiting for the next message."""
    monkeypatch.setattr(recogniser, "hop_frames", lambda widest: recogniser._hops[1.28 if widest else 0.16])
    settings, hop_s, look_ahead_s, frames_s = StreamSettings(), 0.16, 0.1, 0.05
    for seconds in (1.5, 2, 3, 4.5):
        burst = sound[:, : int(seconds * 16_000)]
        stream = recogniser.open(settings)
        reader = asyncio.ensure_future(collect(stream))
        try:
            await stream.push(burst)
            await stream.settled(60)
            assert stream.session.processed_samples / 16_000 >= seconds - hop_s - look_ahead_s - frames_s
        finally:
            await stream.finish()
        assert texts(await reader) == texts(await listen(recogniser, burst, settings))
