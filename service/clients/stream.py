"""The client for live sound: sends, reads, reconnects by itself with back-off, resumes, loses and repeats nothing.

    async with StreamClient("ws://127.0.0.1:8765", encoding="linear16", sample_rate=16000) as client:
        await client.send(sound)            # waits while too much is unacknowledged
        await client.finish()
        async for message in client: ...    # the server's messages as dictionaries, each once, in order

A server that restarts (and so knows no session any more) gets everything since the last final again; times go on.
Raw sound heard as one channel only; other sound cannot be begun in the middle.
"""

import asyncio
import contextlib
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from service.clients import KEY_ADVICE, server_address, untrusted
from service.clients.replay import ReplayLog, SentMessage
from service.errors import ErrorCode, ServiceError, find_error_code

Message = dict[str, Any]
ConnectionState = Literal["connecting", "listening", "reconnecting", "closed"]
WIDTHS = {"linear16": 2, "linear32": 4, "mulaw": 1, "alaw": 1}
FATAL_STATUS = (400, 401, 403, 404, 426)
FATAL_CLOSES = (1007, 1008, 1009, 4000)
KEEP_ALIVE_S = 3.0
FIRST_GIVE_UP_S = 5.0
MAX_RESTARTS = 5
"""New sessions in a row of which none decided a word."""
MAX_UNACKNOWLEDGED_S = 60.0
MAX_UNACKNOWLEDGED_BYTES = 8 * 1024 * 1024


class StreamClient:
    """One live session with a server. Send and read may run in different tasks of one loop."""

    def __init__(
        self,
        server: str,
        *,
        key: str | None = None,
        options: Mapping[str, str | list[str]] | None = None,
        give_up_s: float = 60.0,
        first_wait_s: float = 0.2,
        max_wait_s: float = 5.0,
        on_state: Callable[[ConnectionState], None] | None = None,
        dial: Callable[[str, Mapping[str, str]], Awaitable[ClientConnection]] | None = None,
        **query: str | int | float | bool,
    ) -> None:
        fields = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in query.items()
        }
        self.query: dict[str, str | list[str]] = {"interim_results": "true", **(options or {}), **fields}
        self.query["extensions"] = "true"
        self.server = server_address(server, "ws")
        self.key = key
        self.state: ConnectionState = "connecting"
        self.session: str | None = None
        self.sequence = 0
        self.reconnections = 0
        """How often a lost connection came back."""
        encoding = str(self.query.get("encoding", ""))
        rate = int(str(self.query.get("sample_rate") or (8000 if encoding in ("mulaw", "alaw") else 16000)))
        width, channels = WIDTHS.get(encoding), int(str(self.query.get("channels", 1)))
        whole = self.query.get("multichannel") != "true" or channels == 1
        self.log = ReplayLog(width * channels if width and whole else None, rate)
        self._max_bytes = int(
            min(MAX_UNACKNOWLEDGED_BYTES, MAX_UNACKNOWLEDGED_S * rate * (width or 4) * channels)
        )
        self._give_up_s, self._first_wait_s, self._max_wait_s = give_up_s, first_wait_s, max_wait_s
        self._on_state = on_state
        self._dial = dial or _dial
        self._pending: list[SentMessage] = []
        self._changed = asyncio.Condition()
        self._inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self._failure: ServiceError | None = None
        self._finishing = False
        self._restarts = 0
        self._last_error: Message | None = None
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "StreamClient":
        self._runner = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        self._runner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._runner

    # ---- what the user does

    async def send(self, sound: bytes) -> None:
        """Sound, cut as you like. Waits while too much is unacknowledged; raises what ended the session."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.log.unacknowledged_bytes < self._max_bytes or self.state == "closed"
            )
            self._check_open()
            if sound:
                self._queue(bytes(sound))

    async def finalize(self) -> None:
        """Ask that everything so far become final now."""
        await self._command({"type": "Finalize"})

    async def mark(self, name: str) -> None:
        """Ask for a Marker of this name once everything before it has been heard."""
        await self._command({"type": "Marker", "name": name})

    async def finish(self) -> None:
        """No more sound. Go on reading until the messages end."""
        if not self._finishing:
            await self._command({"type": "CloseStream"})
            self._finishing = True

    async def __aiter__(self) -> AsyncIterator[Message]:
        """The server's messages; ends after Metadata. ServiceError when the session could not be brought to its end."""
        while True:
            message = await self._inbox.get()
            if message is None:
                self._inbox.put_nowait(None)
                if self._failure is not None:
                    raise self._failure
                return
            yield message

    async def _command(self, fields: Message) -> None:
        async with self._changed:
            self._check_open()
            self._queue(json.dumps(fields))

    def _check_open(self) -> None:
        if self.state == "closed" or self._finishing:
            raise self._failure or ServiceError(
                ErrorCode.CLOSED, "The stream is finished.", "Begin a new one."
            )

    def _queue(self, payload: bytes | str) -> None:
        self._pending.append(self.log.add(payload))
        self._changed.notify_all()

    # ---- the connection

    async def _run(self) -> None:
        """Connect, talk, and again, until the end or until giving up."""
        loop = asyncio.get_running_loop()
        wait_s, lost_s = self._first_wait_s, loop.time()
        try:
            while True:
                no_server = False
                try:
                    done, talked = await self._connected()
                    if done:
                        return
                    if talked:
                        wait_s, lost_s = self._first_wait_s, loop.time()
                    retry_s = 0.0
                except InvalidStatus as error:
                    retry_s = self._refused(error)
                except ssl.SSLCertVerificationError as error:
                    raise untrusted(self.server, error) from None  # it would not be trusted later either
                except (OSError, TimeoutError, InvalidHandshake, EOFError):
                    retry_s, no_server = 0.0, True
                # A server that never was there is a wrong address more often than one that comes in a minute.
                patience_s = (
                    min(self._give_up_s, FIRST_GIVE_UP_S) if no_server and self._new else self._give_up_s
                )
                if loop.time() - lost_s > patience_s:
                    trouble = "No server at" if no_server else "No stream could be opened at"
                    advice = (
                        "Is it running?"
                        if no_server
                        else "It may be full, or not ready yet: try again later."
                    )
                    raise ServiceError(
                        ErrorCode.NETWORK, f"{trouble} {self.server} for {patience_s:g} s.", advice
                    )
                self._set("reconnecting")
                # Half the wait is chance, so that a thousand clients of one server do not come back at once.
                await asyncio.sleep(max(retry_s, wait_s * (0.5 + random.random() / 2)))
                wait_s = min(wait_s * 2, self._max_wait_s)
        except ServiceError as error:
            self._failure = error
        finally:
            self._set("closed")
            self._inbox.put_nowait(None)
            async with self._changed:
                self._changed.notify_all()

    @property
    def _new(self) -> bool:
        """Whether no connection has been made yet."""
        return self.session is None and not self._restarts

    def _refused(self, error: InvalidStatus) -> float:
        """A handshake was answered with an HTTP status: how long to wait, or the end."""
        status = error.response.status_code
        try:
            body = json.loads(error.response.body or b"{}")
        except ValueError:
            body = {}
        if status == 410:
            self._restart()
            return 0.0
        if status in FATAL_STATUS:
            fields = body.get("err_msg") or f"The server refused the connection with HTTP {status}."
            code = find_error_code(str(body.get("err_code", "")))
            raise ServiceError(code, fields, KEY_ADVICE if code is ErrorCode.KEY else body.get("advice", ""))
        try:
            return min(float(error.response.headers.get("Retry-After", "0")), self._max_wait_s)
        except ValueError:
            return 0.0

    def _restart(self) -> None:
        """The session is gone: a new one gets everything that is not final yet, if that can be."""
        if not self.log.can_restart:
            raise ServiceError(ErrorCode.RESUME, "The server has lost the session.", "Begin a new stream.")
        if self._restarts >= MAX_RESTARTS:
            raise ServiceError(
                ErrorCode.RESTARTS,
                f"The server ended {MAX_RESTARTS} sessions without deciding anything.",
                "Something in the sound may be what ends them; the server's log knows.",
            )
        self._restarts += 1
        self.log.restart()
        self.session = None

    async def _connected(self) -> tuple[bool, bool]:
        """One connection, from its start to its end: (the session is over, something was said)."""
        query = dict(self.query)
        if self.session is not None:
            query = {"extensions": "true", "resume": self.session, "after": str(self.sequence)}
        headers = {"Authorization": f"Token {self.key}"} if self.key else {}
        socket = await self._dial(f"{self.server}/v1/listen?{urlencode(query, doseq=True)}", headers)
        sender: asyncio.Task[None] | None = None
        talked = False
        try:
            async for raw in socket:
                message = json.loads(raw)
                if message.get("type") == "Started":
                    talked = True
                    await self._welcome(message)
                    sender = asyncio.create_task(self._send_all(socket))
                if self._take(message):
                    return True, True
        except ConnectionClosed:
            pass
        finally:
            if sender is not None:
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                    await sender
            with contextlib.suppress(Exception):
                await socket.close()
        code = socket.close_code or 1006
        if code in FATAL_CLOSES or (code == 1011 and "NET-0001" in (socket.close_reason or "")):
            raise self._ended(code, socket.close_reason or "")
        if code in (1012, 1011, 1000) and self.session is not None:
            # The session was ended by the server in order: what was sent is final, the rest needs a new one.
            self._restart()
        return False, talked

    async def _welcome(self, started: Message) -> None:
        """The first message of a connection says what the server has; the rest is sent (again)."""
        if not self._new:
            self.reconnections += 1
        async with self._changed:
            self.session = started["request_id"]
            self.log.acknowledge(started["received_bytes"], started["received_commands"])
            if not started["resumed"]:
                self.sequence = 0
            self._pending = self.log.resume()
            self._changed.notify_all()
        self._set("listening")

    async def _send_all(self, socket: ClientConnection) -> None:
        """Everything that is to be sent, in order; KeepAlive when there is nothing."""
        while True:
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await self._changed.wait_for(lambda: self._pending)
                entries, self._pending = self._pending, []
            try:
                for entry in entries:
                    await socket.send(entry.payload)
                if not entries:
                    await socket.send('{"type":"KeepAlive"}')
            except ConnectionClosed:
                return

    def _take(self, message: Message) -> bool:
        """One message of the server; True when it is the last."""
        kind, number = message.get("type"), message.get("sequence")
        if kind == "Started" and message["resumed"]:
            return False
        if number is not None:
            if number <= self.sequence and kind not in ("Metadata", "Error"):
                return False  # sent again, and seen before
            self.sequence = max(self.sequence, number)
        if kind == "Error":
            self._last_error = message
            return False
        if kind == "Heartbeat":
            self.log.acknowledge(message["received_bytes"], message["received_commands"])
            self._wake()
        if kind == "Marker":
            self.log.answered("Marker", message.get("name", ""))
        shown = _shifted(message, self.log.offset_s)
        if kind == "Results" and message["is_final"]:
            self._restarts = 0
            self.log.decided(message["start"] + message["duration"])
            if message["from_finalize"] and message["channel_index"][0] == 0:
                self.log.answered("Finalize")
        last = kind == "Metadata" and self._finishing
        if kind != "Metadata" or last:
            self._inbox.put_nowait(shown)
        return last

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._waking = asyncio.get_running_loop().create_task(notify())

    def _ended(self, code: int, reason: str) -> ServiceError:
        fields = self._last_error or {}
        name = fields.get("code") or reason.partition(":")[0]
        return ServiceError(
            find_error_code(name),
            fields.get("message") or reason or f"closed with {code}",
            fields.get("advice", ""),
        )

    def _set(self, state: ConnectionState) -> None:
        if state != self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)


async def _dial(address: str, headers: Mapping[str, str]) -> ClientConnection:
    return await connect(
        address, additional_headers=headers, compression=None, max_size=4 * 1024 * 1024, open_timeout=10
    )


def _shifted(message: Message, offset_s: float) -> Message:
    """The message with its times counted from the client's first sound instead of the session's."""
    if not offset_s:
        return message
    for name in ("start", "timestamp", "last_word_end", "received_s", "processed_s"):
        if name in message:
            message[name] = round(message[name] + offset_s, 3)
    if message.get("type") == "Metadata":
        message["duration"] = round(message["duration"] + offset_s, 4)
    for alternative in (
        message.get("channel", {}).get("alternatives", ()) if message["type"] == "Results" else ()
    ):
        for word in alternative["words"]:
            word["start"] = round(word["start"] + offset_s, 3)
            word["end"] = round(word["end"] + offset_s, 3)
    return message
