"""A server with the real engine and the tiny model, started once. Servers with other settings share its models."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from service.http.server import Server
from service.metrics import Metrics
from service.served_models import ServedModels
from service.settings import Settings

ServerFactory = Callable[..., contextlib.AbstractAsyncContextManager[Server]]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A free port, one engine worker, one decode worker, and 24 streams."""
    return Settings(
        port=0,
        model="tiny",
        language_model="none",
        decoder="greedy",
        engine_workers=1,
        decode_workers=1,
        max_streams=24,
        overcommit=True,
        cache_folder=tmp_path_factory.mktemp("capacity"),
        keys_file=tmp_path_factory.mktemp("keys") / "none.json",
        heartbeat_interval_s=0.2,
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def models(settings: Settings) -> AsyncIterator[ServedModels]:
    """The tiny model, loaded and warmed up."""
    served = ServedModels(settings, Metrics())
    await served.start()
    yield served
    await served.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(settings: Settings, models: ServedModels) -> AsyncIterator[Server]:
    """The server that most tests use."""
    async with Server(settings, models=models) as serving:
        yield serving


@pytest.fixture
def make_server(settings: Settings, models: ServedModels) -> ServerFactory:
    """`async with make_server(idle_timeout_s=1) as server:` another server with the same models and other settings."""

    def make(**changes: Any) -> contextlib.AbstractAsyncContextManager[Server]:
        return Server(replace(settings, **changes), models=models)

    return make


@pytest.fixture(scope="session")
def speech() -> bytes:
    """Two seconds of a modulated tone, linear16 at 16 kHz: the untrained model outputs words for any audio."""
    time_s = np.arange(32000) / 16000
    samples = 0.3 * np.sin(2 * np.pi * (200 + 150 * np.sin(2 * np.pi * 2 * time_s)) * time_s)
    samples += 0.02 * np.random.default_rng(7).standard_normal(len(time_s))
    return bytes((samples * 32767).astype("<i2").tobytes())


RAW = "encoding=linear16&sample_rate=16000"


class ListenClient:
    """One connection of a plain websocket client, and the messages that it received."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []

    async def send(self, *parts: bytes | dict[str, Any]) -> None:
        for part in parts:
            await self.socket.send(part if isinstance(part, bytes) else json.dumps(part))

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Read up to the first message of this type with these fields."""
        async for raw in self.socket:
            message = json.loads(raw)
            self.received.append(message)
            if message["type"] == kind and all(message.get(name) == value for name, value in fields.items()):
                return message
        raise AssertionError(
            f"closed with {self.closed} before {kind}; received {[m['type'] for m in self.received]}"
        )

    async def read_to_end(self) -> tuple[int, str]:
        """Read until the server closes; the close code and reason."""
        with contextlib.suppress(ConnectionClosedError):
            async for raw in self.socket:
                self.received.append(json.loads(raw))
        return self.closed

    @property
    def closed(self) -> tuple[int, str]:
        return self.socket.close_code or 0, self.socket.close_reason or ""

    @property
    def finals(self) -> list[str]:
        """Transcripts of the finals, in order."""
        return [
            message["channel"]["alternatives"][0]["transcript"]
            for message in self.received
            if message["type"] == "Results" and message["is_final"]
        ]

    def messages_of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.received if message["type"] == kind]


@pytest.fixture
def open_client() -> Callable[..., contextlib.AbstractAsyncContextManager[ListenClient]]:
    """`async with open_client(server, "query") as client:` a plain client of /v1/listen."""

    @contextlib.asynccontextmanager
    async def connect_client(server: Server, query: str = RAW, **more: Any) -> AsyncIterator[ListenClient]:
        address = f"{server.address.replace('http', 'ws', 1)}/v1/listen?{query}"
        async with connect(address, compression=None, **more) as socket:
            yield ListenClient(socket)

    return connect_client


def split_audio(audio: bytes, size: int) -> list[bytes]:
    """The audio in chunks of `size` bytes."""
    return [audio[start : start + size] for start in range(0, len(audio), size)]


@pytest.fixture
def chunks() -> Callable[[bytes, int], list[bytes]]:
    return split_audio


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"
