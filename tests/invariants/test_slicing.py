"""Slicing: how the audio is cut into messages never changes a word."""

import random

import numpy as np
import pytest

from service.recognizer import Recognizer, StreamSettings
from service.session.events import Closed
from tests.invariants.conftest import Reference
from tests.invariants.streaming import Samples, check_committed_prefix_grows, results, stream_through, texts
from tests.session.synchronous_driver import transcribe

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
async def test_slicing(recognizer: Recognizer, reference: Reference, audio: Samples, kind: str) -> None:
    expected = transcribe(
        lambda window: reference.backend.forward([window])[0],
        audio,
        SETTINGS,
        reference.backend.config,
        reference.backend.plan,
        reference.utterances,
    )
    events = await stream_through(recognizer, audio, SETTINGS, cuts_of(kind, audio.shape[1]))
    assert len("".join(texts(events))) > 20, "the fake model must output text for this test to mean something"
    assert results(events) == results(expected)
    check_committed_prefix_grows(events)


async def test_single_samples_and_empty_pushes(recognizer: Recognizer, audio: Samples) -> None:
    short = audio[:, :12000]
    stream = stream_through(
        recognizer, short, SETTINGS, [each for at in range(1, 12000) for each in (at, at)][:9000]
    )
    assert results(await stream) == results(await stream_through(recognizer, short, SETTINGS))


async def test_no_audio(recognizer: Recognizer) -> None:
    events = await stream_through(recognizer, np.zeros((1, 0), np.float32), SETTINGS)
    assert results(events) == [("closed", "finished", 0.0)]


@pytest.mark.parametrize("samples", [1, 159, 160, 319, 320, 321, 10239, 10240, 10241])
async def test_audio_of_any_length_is_processed_to_its_end(
    recognizer: Recognizer, audio: Samples, samples: int
) -> None:
    events = await stream_through(recognizer, audio[:, 16000 : 16000 + samples], SETTINGS)
    assert isinstance(events[-1], Closed) and events[-1].audio_s == samples / 16000
    check_committed_prefix_grows(events)
