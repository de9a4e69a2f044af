"""A real server with the real engine and the tiny model, started once; variants of its front share the engine."""

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
from service.scheduling.served_models import ServedModels
from service.settings import Settings

ServerFactory = Callable[..., contextlib.AbstractAsyncContextManager[Server]]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Small and quick: any free port, one worker of each kind, room for everybody."""
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
    """The tiny model, warm."""
    served = ServedModels(settings, Metrics())
    await served.start()
    yield served
    await served.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(settings: Settings, models: ServedModels) -> AsyncIterator[Server]:
    """The front that most tests speak to."""
    async with Server(settings, models=models) as serving:
        yield serving


@pytest.fixture
def make_server(settings: Settings, models: ServedModels) -> ServerFactory:
    """`async with make_server(idle_timeout_s=1) as server:` another front over the same models, with other settings."""

    def make(**changes: Any) -> contextlib.AbstractAsyncContextManager[Server]:
        return Server(replace(settings, **changes), models=models)

    return make


@pytest.fixture(scope="session")
def speech() -> bytes:
    """Two seconds of something, linear16 at 16 kHz: the tiny model hears words in anything."""
    clock = np.arange(32000) / 16000
    sound = 0.3 * np.sin(2 * np.pi * (200 + 150 * np.sin(2 * np.pi * 2 * clock)) * clock)
    sound += 0.02 * np.random.default_rng(7).standard_normal(len(clock))
    return bytes((sound * 32767).astype("<i2").tobytes())


RAW = "encoding=linear16&sample_rate=16000"


class ListenClient:
    """One connection of a plain websocket client, and what it was told."""

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
            f"closed with {self.closed} before {kind}; told {[m['type'] for m in self.received]}"
        )

    async def to_the_end(self) -> tuple[int, str]:
        """Read until the server closes; its code and reason."""
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

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.received if message["type"] == kind]


@pytest.fixture
def open_client() -> Callable[..., contextlib.AbstractAsyncContextManager[ListenClient]]:
    """`async with open_client(server, "query") as client:` a plain client of /v1/listen."""

    @contextlib.asynccontextmanager
    async def open_talk(server: Server, query: str = RAW, **more: Any) -> AsyncIterator[ListenClient]:
        address = f"{server.address.replace('http', 'ws', 1)}/v1/listen?{query}"
        async with connect(address, compression=None, **more) as socket:
            yield ListenClient(socket)

    return open_talk


def cut(sound: bytes, size: int) -> list[bytes]:
    """The sound in pieces."""
    return [sound[start : start + size] for start in range(0, len(sound), size)]


@pytest.fixture
def pieces() -> Callable[[bytes, int], list[bytes]]:
    return cut


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"
