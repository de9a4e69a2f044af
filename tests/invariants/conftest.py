"""One recognizer for all invariants: real processes, the fake model, beam search without a language model."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from acoustic.runtime import open_backend
from service.http.server import Server
from service.metrics import Metrics
from service.recognizer import Recognizer
from service.scheduling.decode_worker import UtteranceTable
from service.served_models import ServedModels
from service.settings import Settings
from tests.invariants.fake_model import PROMPTS, make_fake_model, speech
from tests.invariants.streaming import make_recognizer

# Computed before ONNX Runtime flushes denormals to zero on this thread: numpy would warn.
np.finfo(np.float32), np.finfo(np.float64)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here share one event loop with the recognizer; without recorded prompts they are skipped."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            if inspect.iscoroutinefunction(getattr(item, "function", None)):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if not PROMPTS.is_dir():
                item.add_marker(pytest.mark.skip(reason="needs Debian's asterisk-core-sounds-en-g722"))


@pytest.fixture(scope="session")
def fake_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fake_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def audio() -> npt.NDArray[np.float32]:
    """Twenty seconds of recorded prompts."""
    return speech(20)


class Reference:
    """The same model and decoder in a plain loop: the reference for every stream."""

    def __init__(self, model: Path) -> None:
        self.backend = open_backend(model)
        self.utterances = UtteranceTable(self.backend.config.alphabet, None)


@pytest.fixture(scope="session")
def reference(fake_model: Path) -> Reference:
    return Reference(fake_model)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_recognizer(
    fake_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Recognizer]:
    recognizer = make_recognizer(fake_model, tmp_path_factory.mktemp("cache"), engine_workers=2)
    await recognizer.start()
    yield recognizer
    await recognizer.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def recognizer(shared_recognizer: Recognizer) -> AsyncIterator[Recognizer]:
    """The shared recognizer, cleared of streams that a failed test left open."""
    yield shared_recognizer
    for stream in list(shared_recognizer._streams.values()):
        stream.cancel()
    shared_recognizer._parked.clear()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(fake_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server with the same model on a real port."""
    settings = Settings(
        port=0,
        model=str(fake_model),
        language_model="none",
        engine_workers=1,
        decode_workers=1,
        max_streams=100,
        overcommit=True,
        cache_folder=tmp_path_factory.mktemp("capacity"),
        keys_file=tmp_path_factory.mktemp("keys") / "none.json",
    )
    metrics = Metrics()
    models = ServedModels(settings, metrics)
    await models.start()
    async with Server(settings, metrics, models) as serving:
        yield serving
    await models.stop()
