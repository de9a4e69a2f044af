"""One client's websocket with its protocol: messages come in as commands, texts go out, and it is closed with a reason.

The limits on both ways hold for every protocol. What the commands do is for conversation.py.
"""

import asyncio
import contextlib
from collections.abc import Awaitable

from aiohttp import WSCloseCode, WSMsgType, web

from service.errors import ErrorCode, ServiceError
from service.http.app_state import AppState
from service.protocols.commands import Command, KeepAlive
from service.protocols.wire_protocol import Received, WireProtocol
from service.session.events import Failed

LEAVING = (WSCloseCode.OK, WSCloseCode.GOING_AWAY)
HANDED_OVER_CLOSE = 4000
CLOSE_S = 2.0


class ClientSocket:
    """Reads, writes and closes one websocket. One task may read while another writes."""

    def __init__(
        self, state: AppState, socket: web.WebSocketResponse, protocol: WireProtocol, max_message_bytes: int
    ) -> None:
        self.socket = socket
        self.protocol = protocol
        self.left = False
        """The client closed the socket in order."""
        self.too_slow = False
        """The client took nothing for too long; the connection was cut."""
        self._send_timeout_s = state.settings.send_timeout_s
        self._max_message_bytes = max_message_bytes
        self._close_code = 0
        """The code that this side closed with, if it was the first."""
        self._messages_in = state.metrics.messages_received.labels(protocol.name)
        self._messages_out = state.metrics.messages_sent.labels(protocol.name)
        self._sockets_closed = state.metrics.sockets_closed

    async def receive(self) -> list[Command] | None:
        """The commands of the next message; a ping is a KeepAlive. None when the connection is over.

        ServiceError "size" for a message over the limit.
        """
        message = await self.socket.receive()
        if message.type is WSMsgType.BINARY or message.type is WSMsgType.TEXT:
            self._messages_in.inc()
            if len(message.data) > self._max_message_bytes:
                raise ServiceError(
                    ErrorCode.SIZE,
                    f"a message of {len(message.data)} bytes is over {self._max_message_bytes}.",
                    "Cut it: how sound is cut changes nothing.",
                )
            return self.protocol.receive(message.data)
        if message.type is WSMsgType.PING:
            await self._taken(self.socket.pong(message.data))
            return [KeepAlive()]
        if message.type is WSMsgType.CLOSE:
            self.left = message.data in LEAVING
            return None
        if message.type in (WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            return None
        return []

    async def send(self, text: str) -> None:
        """One message. TimeoutError when the client takes nothing for too long."""
        await self._taken(self.socket.send_str(text))
        self._messages_out.inc()

    async def refuse(self, error: ServiceError) -> None:
        """Close a connection that has no stream yet, and say why where the protocol has a message for that."""
        failed = Failed(error.code, error.message, error.advice)
        with contextlib.suppress(TimeoutError, ConnectionError):
            for text in self.protocol.write(0, failed, Received(0, 0, 0)):
                await self.send(text)
        await self.close(error.code, error.message)

    async def close(self, error: ErrorCode | None = None, message: str = "") -> None:
        """Close the socket, for this reason if it is an error."""
        code = WSCloseCode.OK if error is None else error.close_code
        self._close_code = self._close_code or code
        reason = "" if error is None else self.protocol.close_reason(error, message)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self.socket.close(code=code, message=reason.encode()[:120])

    async def hand_over(self) -> None:
        """Close the socket: its session goes on with another connection."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self.socket.close(code=HANDED_OVER_CLOSE, message=b"RESUMED on another connection")
        self._aborted()

    def count_closed(self) -> int:
        """Count the end of the connection by its code, and return the code.

        A client may close with any code: those that mean nothing here are counted together.
        """
        code = self._close_code or self.socket.close_code or WSCloseCode.ABNORMAL_CLOSURE
        known = 1000 <= code <= 1015 or code == HANDED_OVER_CLOSE
        self._sockets_closed.labels(self.protocol.name, str(int(code)) if known else "other").inc()
        return code

    async def _taken(self, sending: Awaitable[None]) -> None:
        """TimeoutError when the client takes nothing for too long: then the connection is cut.

        At once, since reader and writer wait for room together: one that gives up spoils it for the other.
        """
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await sending
        except TimeoutError:
            self.too_slow = True
            self._aborted()
            raise

    def _aborted(self) -> None:
        """End the connection without waiting for the client."""
        transport = self.socket._req.transport if self.socket._req is not None else None
        if transport is not None:
            transport.abort()
