"""Slicing: how the sound is cut into messages never changes a word."""

import random

import numpy as np
import pytest

from service.core.events import Closed
from service.streams import Recogniser, StreamSettings
from tests.core.plain_loop import transcribe
from tests.laws.conftest import Reference
from tests.laws.streaming import Samples, check_past_is_fixed, heard, listen, texts

SETTINGS = StreamSettings(utterance_end_ms=1000)


def cuts_of(kind: str, length: int) -> list[int]:
    rng = random.Random(kind)
    if kind == "one minute":
        return []
    if kind == "20 ms":
        return list(range(320, length, 320))
    if kind == "odd":
        return list(range(997, length, 997))
    return sorted(rng.sample(range(1, length), 200))


@pytest.mark.parametrize("kind", ["one minute", "20 ms", "odd", "random 1", "random 2"])
async def test_slicing(recogniser: Recogniser, reference: Reference, sound: Samples, kind: str) -> None:
    expected = transcribe(
        lambda window: reference.backend.forward([window])[0],
        sound,
        SETTINGS,
        reference.backend.config,
        reference.backend.plan,
        reference.desk,
    )
    events = await listen(recogniser, sound, SETTINGS, cuts_of(kind, sound.shape[1]))
    assert len("".join(texts(events))) > 20, "the babbler must babble for this to mean something"
    assert heard(events) == heard(expected)
    check_past_is_fixed(events)


async def test_single_samples_and_empty_pushes(recogniser: Recogniser, sound: Samples) -> None:
    short = sound[:, :12000]
    stream = listen(recogniser, short, SETTINGS, [each for at in range(1, 12000) for each in (at, at)][:9000])
    assert heard(await stream) == heard(await listen(recogniser, short, SETTINGS))


async def test_no_sound_at_all(recogniser: Recogniser) -> None:
    events = await listen(recogniser, np.zeros((1, 0), np.float32), SETTINGS)
    assert heard(events) == [("closed", "finished", 0.0)]


@pytest.mark.parametrize("samples", [1, 159, 160, 319, 320, 321, 10239, 10240, 10241])
async def test_any_length_is_heard_to_its_end(recogniser: Recogniser, sound: Samples, samples: int) -> None:
    events = await listen(recogniser, sound[:, 16000 : 16000 + samples], SETTINGS)
    assert isinstance(events[-1], Closed) and events[-1].audio_s == samples / 16000
    check_past_is_fixed(events)
