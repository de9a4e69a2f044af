"""/v1/realtime over a real socket: what ends a stream, and whose sound an answer is. Its own client: tests/e2e."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from service.dialects.openai_realtime import RealtimeDialect
from service.http.server import Server
from service.http.state import STATE
from service.keys import add_key, revoke_key

pytestmark = pytest.mark.asyncio(loop_scope="session")
COMPLETED = "conversation.item.input_audio_transcription.completed"


@contextlib.asynccontextmanager
async def realtime(server: Server, **more) -> AsyncIterator[ClientConnection]:
    """A socket that only commits decide on."""
    address = f"{server.address.replace('http', 'ws', 1)}/v1/realtime?intent=transcription"
    async with connect(address, compression=None, **more) as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"
        await send(socket, "session.update", session={"audio": {"input": {"turn_detection": None}}})
        assert json.loads(await socket.recv())["type"] == "session.updated"
        yield socket


async def send(socket: ClientConnection, kind: str, **fields: object) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def append(socket: ClientConnection, sound: bytes) -> None:
    await send(socket, "input_audio_buffer.append", audio=base64.b64encode(sound).decode())


async def to_the_end(socket: ClientConnection) -> list[dict]:
    told = []
    with contextlib.suppress(ConnectionClosedError):
        async for message in socket:
            told.append(json.loads(message))
    return told


async def completed(server: Server, *asked: bytes | str) -> list[str]:
    """What is told of these sounds, commits and clears, all sent at once."""
    async with realtime(server) as socket:
        for one in asked:
            await (
                append(socket, one) if isinstance(one, bytes) else send(socket, f"input_audio_buffer.{one}")
            )
        found: list[str] = []
        while len(found) < asked.count("commit"):
            message = json.loads(await socket.recv())
            assert message["type"] != "error", message
            if message["type"] == COMPLETED:
                found.append(message["transcript"])
        return found


async def test_a_message_of_the_wrong_shape_is_told_and_the_stream_goes_on(server, speech):
    async with realtime(server) as socket:
        await append(socket, speech)
        for audio in ([1], {"input": {"format": {"type": []}}}):
            await send(socket, "session.update", session={"audio": audio})
        await send(socket, "input_audio_buffer.commit")
        told = [json.loads(await socket.recv()) for _ in range(2)]
        assert [message["error"]["param"] for message in told] == [
            "session.audio",
            "session.audio.input.format",
        ]
        async for message in socket:
            if json.loads(message)["type"] == COMPLETED:
                break


async def test_whatever_fails_here_ends_the_stream_and_is_told(server, models, speech, monkeypatch, caplog):
    before = models.default.capacity().streams
    async with realtime(server) as socket:
        await append(socket, speech)
        await send(socket, "input_audio_buffer.clear")
        while json.loads(await socket.recv())["type"] != "input_audio_buffer.cleared":
            pass
        assert models.default.capacity().streams == before + 1

        def fail(self, text):
            raise AttributeError("a defect")

        monkeypatch.setattr(RealtimeDialect, "receive", fail)
        await send(socket, "input_audio_buffer.commit")
        told = await to_the_end(socket)
    assert [message["error"]["code"] for message in told] == ["internal"]
    assert (socket.close_code, socket.close_reason) == (1011, "internal")
    await server.app[STATE].listening._idle.wait()
    assert models.default.capacity().streams == before
    assert "a defect" in caplog.text


async def test_a_revoked_key_ends_its_stream(front, keys_file, speech):
    add_key(keys_file, "stays")
    _, secret = add_key(keys_file, "goes")
    async with front(keys_file=keys_file) as server:
        async with realtime(server, additional_headers={"Authorization": f"Bearer {secret}"}) as socket:
            await append(socket, speech)
            revoke_key(keys_file, "goes")
            reading = asyncio.create_task(to_the_end(socket))
            while not reading.done():
                with contextlib.suppress(ConnectionClosedError):
                    await append(socket, bytes(960))
                await asyncio.wait({reading}, timeout=0.2)
        assert (socket.close_code, socket.close_reason) == (1008, "key")
        assert (await reading)[-1]["error"]["code"] == "key"


async def test_what_was_cleared_is_not_told_and_what_was_committed_is(server, speech):
    noise = bytes(reversed(speech))
    first, _, third = await completed(server, speech, "commit", noise, "commit", speech[:40000], "commit")
    told = await completed(server, speech, "commit", noise, "clear", speech[:40000], "commit")
    assert told == [first, third] and first and third


async def test_every_commit_has_its_answer_however_little_sound_it_has(server, speech):
    """The resampler held back a tenth of a second: two commits within that were answered as one."""
    pieces = [speech[:960], "commit"] * 4
    assert len(await completed(server, *pieces, speech, "commit")) == 5
