"""/v1/realtime over a real socket: what ends a stream, and whose sound an answer is. Its own client: tests/e2e."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from service.auth.keys import add_key, revoke_key
from service.errors import ErrorCode, ServiceError
from service.http import realtime as face
from service.http.app_state import APP_STATE
from service.http.client_streams import ClientStream
from service.http.server import Server
from service.http.websocket_connection import CATCH_UP
from service.protocols.openai_realtime import RealtimeProtocol

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
    received = []
    with contextlib.suppress(ConnectionClosedError):
        async for message in socket:
            received.append(json.loads(message))
    return received


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
        received = [json.loads(await socket.recv()) for _ in range(2)]
        assert [message["error"]["param"] for message in received] == [
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

        monkeypatch.setattr(RealtimeProtocol, "receive", fail)
        await send(socket, "input_audio_buffer.commit")
        received = await to_the_end(socket)
    assert [message["error"]["code"] for message in received] == ["internal"]
    assert (socket.close_code, socket.close_reason) == (1011, "internal")
    await server.app[APP_STATE].client_streams._idle.wait()
    assert models.default.capacity().streams == before
    assert "a defect" in caplog.text


async def test_a_revoked_key_ends_its_stream(make_server, keys_file, speech):
    add_key(keys_file, "stays")
    _, secret = add_key(keys_file, "goes")
    async with make_server(keys_file=keys_file) as server:
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


# ---- the limits of /v1/listen hold here too, and are reported as this protocol reports errors


async def ended(socket: ClientConnection) -> tuple[str, int, str]:
    """The code of the error that the socket ends with, and how it is closed."""
    code = (await to_the_end(socket))[-1]["error"]["code"]
    return code, socket.close_code or 0, socket.close_reason or ""


async def test_sound_far_ahead_of_real_time_is_read_slowly_and_never_dropped(make_server, speech):
    async with make_server(max_audio_lead_s=1.0) as server:
        throttled_s = server.metrics.throttled_s._value.get
        server.app[APP_STATE].clock = throttled_s  # no time passes but what is waited
        (all_at_once,) = await completed(server, speech, "commit")
        assert throttled_s() == 0, "one message is taken whole"
        (slowed,) = await completed(server, speech[:48000], speech[48000:], b"", "commit")
        sent_s = len(speech) / 2 / 24000
        assert throttled_s() == pytest.approx((sent_s - 1.0) / CATCH_UP, abs=0.05)
        assert slowed == all_at_once != ""


@pytest.mark.parametrize("with_sound", [False, True])
async def test_a_silent_client_is_told_and_its_stream_ends(server, models, speech, monkeypatch, with_sound):
    before = models.default.capacity().streams
    monkeypatch.setattr(face, "IDLE_TIMEOUT_S", 1.0)
    async with realtime(server) as socket:
        if with_sound:
            await append(socket, speech)
        assert await ended(socket) == ("idle", 1011, "idle")
    await server.app[APP_STATE].client_streams._idle.wait()
    assert models.default.capacity().streams == before


async def taken(socket: ClientConnection, sound: bytes, server: Server) -> ClientStream:
    """Send sound; the session, once the sound has been taken in."""
    await append(socket, sound)
    await send(socket, "input_audio_buffer.clear")
    while json.loads(await socket.recv())["type"] != "input_audio_buffer.cleared":
        pass
    (session,) = server.app[APP_STATE].client_streams._sessions.values()
    return session


async def test_a_message_or_a_ping_is_a_sign_of_life(server, speech, monkeypatch):
    monkeypatch.setattr(face, "IDLE_TIMEOUT_S", 2.0)
    async with realtime(server) as socket:
        for _ in range(2):  # longer than the limit, before there is a stream
            await asyncio.sleep(1.2)
            await socket.ping()
        stream = (await taken(socket, speech, server)).stream
        assert stream.settings.idle_timeout_s == 2.0
        for again in (send(socket, "session.update", session={}), socket.ping()):
            before_s = stream.last_activity_s
            answer = await again
            await (socket.recv() if answer is None else answer)
            assert stream.last_activity_s > before_s


@pytest.mark.parametrize("with_sound", [False, True])
async def test_a_message_over_the_limit_ends_the_stream(server, speech, monkeypatch, with_sound):
    monkeypatch.setattr(face, "MAX_MESSAGE_BYTES", 50_000)
    async with realtime(server) as socket:
        if with_sound:
            await append(socket, speech[:20_000])
        await append(socket, speech[:40_000])  # base64 makes a third more of it
        assert await ended(socket) == ("size", 1009, "size")


async def test_used_up_minutes_end_the_stream(make_server, keys_file, speech):
    _, secret = add_key(keys_file, "small", minutes_per_day=1 / 60)
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        make_server(keys_file=keys_file) as server,
        realtime(server, additional_headers=headers) as socket,
    ):
        await append(socket, speech)
        assert await ended(socket) == ("key_minutes", 1008, "key_minutes")


async def test_a_server_that_stops_closes_the_socket_in_order(server, speech):
    async with realtime(server) as socket:
        session = await taken(socket, speech, server)
        session.stream.drain()
        received = await to_the_end(socket)
    assert [message["type"] for message in received if message["type"] == "error"] == []
    assert (socket.close_code, socket.close_reason) == (1012, "drained")


async def test_a_full_server_says_so_with_the_first_sound(server, models, speech, monkeypatch):
    def full(settings):
        raise ServiceError(ErrorCode.CAPACITY, "All streams are in use.", retry_after_s=1.0)

    async with realtime(server) as socket:
        monkeypatch.setattr(models.default, "open", full)
        await append(socket, speech)
        assert await ended(socket) == ("capacity", 1013, "capacity")
        assert server.app[APP_STATE].client_streams.count == 0


# ---- whose sound an answer is


async def test_what_was_cleared_is_not_told_and_what_was_committed_is(server, speech):
    noise = bytes(reversed(speech))
    first, _, third = await completed(server, speech, "commit", noise, "commit", speech[:40000], "commit")
    received = await completed(server, speech, "commit", noise, "clear", speech[:40000], "commit")
    assert received == [first, third] and first and third


async def test_every_commit_has_its_answer_however_little_sound_it_has(server, speech):
    """The resampler held back a tenth of a second: two commits within that were answered as one."""
    pieces = [speech[:960], "commit"] * 4
    assert len(await completed(server, *pieces, speech, "commit")) == 5
