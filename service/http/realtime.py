"""GET /v1/realtime?intent=transcription: OpenAI's realtime socket. The wire lies in dialects/openai_realtime.py.

The stream is opened with the first sound, when the session's settings are known. Without a word from the client
for `IDLE_S` the socket is closed; a client that leaves ends its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid

from aiohttp import WSMsgType, web

from service.audio.pcm import PcmDecoder
from service.audio.resample import RATE, Samples
from service.core.events import Closed
from service.dialects.commands import Audio, Finalize, Say
from service.dialects.openai_realtime import RealtimeDialect
from service.errors import ServiceError
from service.http.auth import key_of
from service.http.conversation import count_closed, cut_off
from service.http.listen import check_accepting, check_upgrade, upgrade
from service.http.state import STATE, State
from service.keys import Key
from service.recordings import opened
from service.streams import Stream, StreamSettings

IDLE_S = 900.0
MOST_MESSAGE_BYTES = 20 * 1024 * 1024
PIECE_BYTES = 65536


def add_realtime_routes(app: web.Application) -> None:
    """The one route."""
    app.router.add_get("/v1/realtime", realtime)


async def realtime(request: web.Request) -> web.StreamResponse:
    """One socket, from its opening to its end."""
    state, key = request.app[STATE], key_of(request)
    check_upgrade(request)
    check_accepting(state)
    if request.query.get("intent", "transcription") != "transcription":
        raise ServiceError(
            "request", "Only intent=transcription is served here.", "This server does not speak."
        )
    state.listening.enter_socket("openai")
    try:
        state.keys.take(key)
        try:
            socket = web.WebSocketResponse(
                max_msg_size=MOST_MESSAGE_BYTES, compress=False, protocols=("realtime",), timeout=2.0
            )
            await upgrade(request, socket)
            model = request.query.get("model") or state.models.names[0]
            await _Conversation(state, key, socket, RealtimeDialect(uuid.uuid4().hex, model)).run()
            return socket
        finally:
            state.keys.release(key)
    finally:
        state.listening.leave_socket("openai")


class _Conversation:
    """One socket with its stream."""

    def __init__(
        self, state: State, key: Key, socket: web.WebSocketResponse, dialect: RealtimeDialect
    ) -> None:
        self.state = state
        self.key = key
        self.socket = socket
        self.dialect = dialect
        self.decoder: PcmDecoder | None = None
        self.stream: Stream | None = None
        self._writer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until one side ends it; whatever happens, the stream ends with it."""
        reader = asyncio.create_task(self._read())
        try:
            await self._send([self.dialect.created()])
            await reader
        except ServiceError as error:
            await self._refuse(error, 1013 if error.retry_after_s else 1008)
        except (TimeoutError, ConnectionError):
            await self._close(1011, "idle")
        except Exception as error:
            self._log(error)
            await self._refuse(
                ServiceError("internal", "Something went wrong here; it is logged.", "Open a new session."),
                1011,
            )
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if self.stream is not None:
                self.stream.cancel("client left")
            if self._writer is not None:
                await asyncio.gather(self._writer, return_exceptions=True)
            await self._close(1000, "")
            count_closed(self.state.metrics, "openai", self.socket.close_code or 1006)

    async def _read(self) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                message = await self.socket.receive()
            if message.type is WSMsgType.TEXT:
                self.state.metrics.messages_received.labels("openai").inc()
                for command in self.dialect.receive(message.data):
                    if isinstance(command, Audio):
                        await self._hear(command.data)
                    elif isinstance(command, Finalize):
                        await self._finalize()
                    elif isinstance(command, Say):
                        await self._send([command.text])
            elif message.type is WSMsgType.BINARY:
                told = "Sound goes into input_audio_buffer.append, as base64."
                await self._send([self.dialect.error("invalid_event", told, None, None)])
            else:
                return

    async def _hear(self, data: bytes) -> None:
        self._open()
        assert self.decoder is not None
        self.state.metrics.audio_received_bytes.inc(len(data))
        for start in range(0, len(data), PIECE_BYTES):
            await self._push(self.decoder.push(data[start : start + PIECE_BYTES]))
        if not self.state.keys.alive(self.key, self.state.clock()):
            raise ServiceError("key", "The API key was revoked.", "Ask for a new one.")
        self.state.keys.check_minutes(self.key)

    async def _finalize(self) -> None:
        """What the resampler still holds belongs to the sound before, and is heard with it."""
        stream = self._open()
        assert self.decoder is not None
        await self._push(self.decoder.finish())
        await stream.finalize()

    async def _push(self, samples: Samples) -> None:
        await self._open().push(samples)
        self.state.keys.heard(self.key, samples.shape[1] / RATE)

    def _open(self) -> Stream:
        if self.stream is None:
            wanted = self.dialect.settings
            encoding, rate = wanted.encoding
            self.decoder = PcmDecoder(encoding, rate, 1)
            settings = StreamSettings(
                endpointing_ms=wanted.silence_ms,
                max_utterance_s=self.state.settings.max_utterance_s,
                hotwords=wanted.hotwords,
                decoder=self.state.settings.decoder,
                owner=self.key.id,
            )
            self.stream = opened(self.state.models.pick(wanted.model), settings)
            self._writer = asyncio.create_task(self._write(self.stream))
        return self.stream

    async def _write(self, stream: Stream) -> None:
        try:
            async for event in stream.events():
                await self._send(self.dialect.write(event))
                if isinstance(event, Closed):
                    drained = event.reason == "drained"
                    await self._close(1012 if drained else 1011, event.reason)
        except (TimeoutError, ConnectionError):
            stream.cancel("slow reader")
            await self._close(1008, "slow reader")
        except Exception as error:
            self._log(error)
            stream.cancel("failed")
            await self._close(1011, "internal")

    async def _refuse(self, error: ServiceError, code: int) -> None:
        """Say why, if the client still listens, and close."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            await self._send([self.dialect.error(error.code, str(error), None, None, "server_error")])
        await self._close(code, error.code)

    def _log(self, error: Exception) -> None:
        facts = {"session": self.dialect.session_id}
        logging.getLogger("silica").error("connection failed", exc_info=error, extra={"facts": facts})

    async def _send(self, texts: list[str]) -> None:
        for text in texts:
            if self.socket.closed:
                return
            try:
                async with asyncio.timeout(self.state.settings.send_timeout_s):
                    await self.socket.send_str(text)
            except TimeoutError:
                cut_off(self.socket)  # at once: see `Conversation`
                raise
            self.state.metrics.messages_sent.labels("openai").inc()

    async def _close(self, code: int, reason: str) -> None:
        if not self.socket.closed:
            with contextlib.suppress(Exception):
                await self.socket.close(code=code, message=reason.encode()[:120])
