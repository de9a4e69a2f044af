"""Readings ranked again when an utterance ends: other streams pass, a stream's own answers keep their order."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acoustic.constants import OUTPUT_S
from lm.rescore import NGramRescorer, RescoreSettings, Rescoring
from lm.tuning import ALPHABET
from service.core.events import Final
from service.core.messages import Conclude, Push
from service.core.stream_settings import StreamSettings
from service.metrics import Metrics
from service.scheduling.decode_worker import (
    FRAMES_A_LETTER,
    REHEARSED,
    REHEARSED_READINGS,
    Answer,
    Desk,
    Forget,
    Open,
)
from service.scheduling.decoding import DecodePool
from tests.core.plain_loop import noise, spelling_network, spoken, transcribe
from tests.lm.conftest import DATA

Frames = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@pytest.fixture
def language_model(tmp_path: Path) -> str:
    """A rescoring that turns the order of the search around."""
    settings = RescoreSettings(0.0, 1.5, (6.0,), longest_list=12)
    search = DATA / "tiny-bigram.binary"
    rescoring = Rescoring((NGramRescorer(DATA / "tiny-plain.binary"),), settings, str(search))
    rescoring.save(tmp_path / "rescoring.json", [DATA / "tiny-plain.binary"])
    return str(tmp_path / "rescoring.json")


@pytest.fixture
def frames() -> Frames:
    scores = np.random.default_rng(5).normal(size=(40, len(ALPHABET) + 1)) * 2.0
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)), np.float32)


def test_other_streams_pass_and_the_own_order_stays(language_model: str, frames: Frames) -> None:
    desk = Desk(ALPHABET, language_model)
    desk.warm()
    assert desk.go_on() is None  # nothing is left of the rehearsal
    opened = Open(3, (), "beam")
    batch = [("a", opened), ("b", opened), ("a", Push(1, 0, 1, frames, True)), ("a", Conclude(2, 0, 1))]
    at_once = desk.handle([*batch, ("a", Push(3, 0, 2, frames, True)), ("b", Push(4, 0, 1, frames, True))])
    assert [(answer.stream, answer.serial) for answer in at_once] == [("a", 1), ("b", 4)]
    desk.handle([("b", Conclude(5, 0, 1)), ("a", Forget())])
    slices: list[list[Answer]] = []
    while (done := desk.go_on()) is not None:
        slices.append(done)
    assert len(slices) > 2
    later = [(answer.stream, answer.serial) for done in slices for answer in done]
    assert later == [("a", 2), ("a", 3), ("b", 5)]
    assert all(answer.error is None for done in slices for answer in done)


def test_a_worker_ranks_as_a_decoder_in_this_process_does(language_model: str, frames: Frames) -> None:
    async def answers() -> list[Answer]:
        heard: list[Answer] = []
        over = asyncio.Event()

        def take(stream: str, answer: Answer) -> None:
            heard.append(answer)
            if len(heard) == 4:
                over.set()

        pool = DecodePool(language_model, 1, Metrics(), take, lambda _: None, lambda _: None)
        await pool.start(ALPHABET)
        try:
            for stream in ("a", "b"):
                pool.pin(stream, Open(3, (), "beam"))
                pool.send(stream, Push(1, 0, 1, frames, True))
                pool.send(stream, Conclude(2, 0, 1))
            await asyncio.wait_for(over.wait(), 60.0)
            assert not pool.workers[0].in_flight
        finally:
            await pool.stop()
        return heard

    heard = asyncio.run(answers())
    desk = Desk(ALPHABET, language_model)
    desk.handle([("a", Open(3, (), "beam")), ("a", Push(1, 0, 1, frames, True)), ("a", Conclude(2, 0, 1))])
    expected = [answer for done in iter(desk.go_on, None) for answer in done]
    for stream in ("a", "b"):
        finals = [answer for answer in heard if answer.stream == stream and answer.serial == 2]
        assert [answer.hypotheses for answer in finals] == [expected[0].hypotheses]
        assert len(finals[0].hypotheses) == 3

    plain = Desk(ALPHABET, str(DATA / "tiny-bigram.binary"))
    plain.handle([("a", Open(3, (), "beam")), ("a", Push(1, 0, 1, frames, True))])
    (searched,) = plain.handle([("a", Conclude(2, 0, 1))])
    assert searched.hypotheses[0].score != expected[0].hypotheses[0].score


def test_the_plain_loop_tells_finals_that_are_ranked_by_the_box() -> None:
    desk = Desk(ALPHABET, "shipped")
    events = transcribe(spelling_network(spoken("the house ")), noise(3.0), StreamSettings(), desk=desk)
    finals = [event for event in events if isinstance(event, Final)]
    assert [final.text for final in finals] == ["the house"]
    assert desk.go_on() is None


def test_what_ranking_costs_is_measured_at_the_start(language_model: str) -> None:
    """A rescorer that works for a fifth of a second is told of, spread over the rehearsed words."""
    desk = Desk(ALPHABET, language_model)
    rescoring = desk._language.rescoring
    assert rescoring is not None
    ranked: list[int] = []

    def slow(texts: Sequence[str], *more: Any) -> Iterator[list[float] | None]:
        ranked.append(len(texts))
        until_s = time.process_time() + (0.2 if len(texts) == REHEARSED_READINGS else 0.0)
        while time.process_time() < until_s:
            pass
        yield [0.0] * len(texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rescoring.rescorers[0], "slices", slow)
        told_s_per_s = desk.warm()
    assert ranked[-1] == REHEARSED_READINGS
    assert told_s_per_s >= 0.2 / (len(REHEARSED) * FRAMES_A_LETTER * OUTPUT_S)
