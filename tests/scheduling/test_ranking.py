"""Readings ranked again when an utterance ends: other streams pass, a stream's own answers keep their order."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from lm.rescore import NGramRescorer, RescoreSettings, Rescoring
from lm.tuning import ALPHABET
from service.core.messages import Conclude, Push
from service.metrics import Metrics
from service.scheduling.decode_worker import Answer, Desk, Forget, Open
from service.scheduling.decoding import DecodePool
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
