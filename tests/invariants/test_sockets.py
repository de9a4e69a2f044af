"""The invariants over a real port: sliced messages, many websockets, lost connections, invalid messages."""

import asyncio
import json
from collections.abc import Iterator

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from service.http.server import Server
from service.recognizer import Recognizer, StreamSettings
from tests.invariants.streaming import Samples, stream_through, texts

QUERY = "encoding=linear16&sample_rate=16000&interim_results=true"


def linear16(audio: Samples) -> bytes:
    return bytes(np.round(audio[0] * 32767).astype("<i2").tobytes())


def from_linear16(data: bytes) -> Samples:
    return (np.frombuffer(data, "<i2").astype(np.float32) / 32768)[None]


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def connected(server: Server) -> connect:
    return connect(f"ws://127.0.0.1:{server.port}/v1/listen?{QUERY}", compression=None, max_size=2**22)


async def finals(socket: ClientConnection) -> list[str]:
    found = []
    async for message in socket:
        result = json.loads(message)
        if result["type"] == "Results" and result["is_final"]:
            found.append(result["channel"]["alternatives"][0]["transcript"])
    return found


async def run_client(server: Server, data: bytes, size: int) -> list[str]:
    async with connected(server) as socket:
        reading = asyncio.ensure_future(finals(socket))
        for piece in cut(data, size):
            await socket.send(piece)
        await socket.send('{"type": "CloseStream"}')
        return await reading


@pytest.mark.parametrize("size", [1, 3, 997, 6400, 2**18])
async def test_slicing(server: Server, recognizer: Recognizer, audio: Samples, size: int) -> None:
    data = linear16(audio[:, :16_000] if size < 10 else audio[:, :160_000])
    expected = texts(await stream_through(recognizer, from_linear16(data), StreamSettings()))
    assert await run_client(server, data, size) == expected
    assert "".join(expected) or size < 10


async def test_failing_clients_do_not_change_other_results(
    server: Server, recognizer: Recognizer, audio: Samples
) -> None:
    data = linear16(audio[:, :160_000])
    expected = texts(await stream_through(recognizer, from_linear16(data), StreamSettings()))

    async def disconnects() -> None:
        socket = await connected(server)
        await socket.send(data[:100_001])
        socket.transport.abort()

    async def sends_garbage() -> None:
        async with connected(server) as socket:
            await socket.send(data[:50_000])
            await socket.send("\x00 not JSON")
            with pytest.raises(ConnectionClosed):
                while True:
                    await socket.recv()

    async def sends_nan() -> None:
        query = QUERY.replace("linear16", "linear32")
        async with connect(f"ws://127.0.0.1:{server.port}/v1/listen?{query}", compression=None) as socket:
            with pytest.raises(ConnectionClosed):
                await socket.send(np.full(64_000, np.nan, "<f4").tobytes())
                while True:
                    await socket.recv()

    valid = [asyncio.ensure_future(run_client(server, data, 3200 + 100 * number)) for number in range(4)]
    await asyncio.gather(*(each() for each in (disconnects, sends_garbage, sends_nan) for _ in range(3)))
    assert await asyncio.gather(*valid) == [expected] * 4
    async with asyncio.timeout(30):
        while b"silica_sessions_open 0.0" not in server.metrics.expose():  # noqa: ASYNC110 (waits for the gauge)
            await asyncio.sleep(0.05)
