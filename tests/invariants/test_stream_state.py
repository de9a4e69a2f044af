"""Carried state, served: company, slicing, hops, Finalize and a killed worker change nothing of what is heard."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from acoustic import catalogue
from acoustic.architectures import BlockConfig, published
from acoustic.runtime import open_backend
from acoustic.windows import with_hop
from service.recognizer import Recognizer, Stream, StreamSettings
from service.scheduling.decode_worker import UtteranceTable
from service.scheduling.executors import ProcessExecutor
from service.session.events import Closed, Event, Final
from tests.invariants.fake_model import make_fake_model
from tests.invariants.streaming import Samples, collect, recognizer_of, results, stream_through
from tests.invariants.test_failure_stays_local import send
from tests.session.synchronous_driver import transcribe

SETTINGS = StreamSettings()
# Like the model in the box, but small: steps of 80 ms, little look-ahead, a long way back.
STEPS = replace(
    published["tiny"],
    blocks=(
        *(BlockConfig(5, 16, stride=2, look_ahead=1) for _ in range(3)),
        *(BlockConfig(5, 16, 2, separable=True, residual="identity", look_ahead=(1, 0)) for _ in range(2)),
    ),
    outputs_per_step=4,
)


@pytest.fixture(scope="module")
def stepping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fake_model(tmp_path_factory.mktemp("stepping"), catalogue.untrained(STEPS))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def carrying(stepping: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Recognizer]:
    live_recognizer = recognizer_of(stepping, tmp_path_factory.mktemp("cache"))
    await live_recognizer.start()
    yield live_recognizer
    await live_recognizer.stop()


async def test_a_stream_in_company_hears_what_it_hears_alone(
    carrying: Recognizer, stepping: Path, sound: Samples
) -> None:
    """Against a plain loop with one held hop: here the hops change with the load, and pushes are ragged."""
    assert carrying.device.engine.plan.stateful
    backend = open_backend(stepping)
    plan = with_hop(backend.config, backend.plan, 0.32)
    utterances = UtteranceTable(backend.config.alphabet, None)
    sounds = [sound[:, : 16_000 * seconds] for seconds in (20, 13, 7, 16)]
    told = await asyncio.gather(
        *(stream_through(carrying, each, SETTINGS, range(1_234, each.shape[1], 5_678)) for each in sounds)
    )
    for each, events in zip(sounds, told, strict=True):
        alone = transcribe(
            lambda w: backend.forward([w])[0], each, SETTINGS, backend.config, plan, utterances
        )
        assert spoken(events) == spoken(alone)
        assert isinstance(events[-1], Closed) and events[-1].reason == "finished"
    assert any(spoken(events) for events in told)


def spoken(events: list[Event]) -> list[object]:
    """Words and their times: where an utterance is cut does not depend on the windows either."""
    return [what for what in results(events) if what[0] == "final"]


async def test_after_a_finalize_the_stream_goes_on_as_a_new_one(carrying: Recognizer, sound: Samples) -> None:
    """What follows a Finalize begins without state: it hears what a stream that begins there hears."""
    later = sound[:, 96_000:200_000]
    alone = texts_of(await stream_through(carrying, later, SETTINGS))
    stream = carrying.open(SETTINGS)
    reader = asyncio.ensure_future(collect(stream))
    await stream.push(sound[:, :96_000])
    await stream.finalize()
    for at in range(0, later.shape[1], 3_200):
        await stream.push(later[:, at : at + 3_200])
    await stream.finish()
    finals = [event for event in await reader if isinstance(event, Final)]
    ending = next(index for index, final in enumerate(finals) if final.from_finalize)
    assert texts_of(finals[ending + 1 :]) == alone and alone


def texts_of(events: Sequence[Event]) -> list[str]:
    finals = [event for event in events if isinstance(event, Final)]
    return [" ".join(word.text for word in final.alternatives[0].words) for final in finals]


async def test_a_killed_worker_loses_no_state(carrying: Recognizer, sound: Samples) -> None:
    alone = results(await stream_through(carrying, sound, SETTINGS))
    streams = [carrying.open(SETTINGS) for _ in range(4)]
    readers = [asyncio.ensure_future(collect(stream)) for stream in streams]

    async def feed(stream: Stream, number: int) -> None:
        for at in range(0, sound.shape[1], 8_000):
            if number == 0 and at in (80_000, 160_000):
                for executor in carrying.device.engine.executors:
                    assert isinstance(executor, ProcessExecutor) and executor.process.pid
                    send(executor.process.pid, signal.SIGKILL)
            await stream.push(sound[:, at : at + 8_000])
        await stream.finish()

    restarts = carrying.metrics.worker_restarts.labels(kind="engine")
    before = restarts._value.get()
    await asyncio.gather(*(feed(stream, number) for number, stream in enumerate(streams)))
    for events in await asyncio.gather(*readers):
        assert results(events) == alone
    assert restarts._value.get() > before
