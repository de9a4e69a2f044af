"""The other processes behind the same port: which of them has a session, and a connection passed on to it.

A session lives where it began. A client that comes back may reach another process, which then passes every
message on through a socket that only this machine's owner of the service can open.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web

from service.errors import ErrorCode, ServiceError
from service.http.headers import REQUEST_ID, SERVER
from service.logs import log_event

FORWARDED_HEADERS = (
    "Authorization",
    "Cookie",
    "Host",
    "Origin",
    "Sec-WebSocket-Protocol",
    "User-Agent",
)
RETURNED_HEADERS = ("X-Request-Id", "dg-request-id", "Silica-Session", "Retry-After", "WWW-Authenticate")
CLOSE_S = 2.0


class Peers:
    """What one front knows of the others: their number and where their sockets are."""

    def __init__(self, row: int, max_row: int, folder: Path, notify_peers: Callable[[], None]) -> None:
        self.row, self.max_row, self.folder = row, max_row, folder
        self.notify_peers = notify_peers
        """Have everybody look into the stores that all share."""
        self.listeners: list[Callable[[], None]] = []
        """Called when somebody nudged."""

    @property
    def own_socket(self) -> Path:
        """Where the others reach this one."""
        return self._socket(self.row)

    def owner(self, session: str) -> Path | None:
        """The socket of the sister that has this session; None when it would be here (or nowhere)."""
        try:
            row = int(session[:2], 16)
        except ValueError:
            return None
        return self._socket(row) if 1 <= row <= self.max_row and row != self.row else None

    def on_notified(self) -> None:
        """Somebody put something into a shared store."""
        for listener in self.listeners:
            listener()

    def _socket(self, row: int) -> Path:
        return self.folder / f"front-{row}.sock"


async def proxy_websocket(request: web.Request, peer: Path, max_bytes: int) -> web.StreamResponse:
    """This websocket is a sister's: her handshake, her messages, her close, unchanged."""
    headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
    protocols = tuple(
        close_both.strip()
        for close_both in headers.pop("Sec-WebSocket-Protocol", "").split(",")
        if close_both.strip()
    )
    connector = aiohttp.UnixConnector(path=str(peer))
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            inner = await session.ws_connect(
                f"http://sister{request.rel_url}",
                headers=headers,
                protocols=protocols,
                autoping=False,
                autoclose=False,
                compress=0,
                max_msg_size=2 * max_bytes,
            )
        except aiohttp.WSServerHandshakeError as error:
            return handshake_rejected(error)
        except (aiohttp.ClientError, OSError):
            raise ServiceError(
                ErrorCode.RESUME,
                "The process that had this session is gone.",
                "Begin a new one, and send the sound again from where your last final ended.",
            ) from None
        outer = web.WebSocketResponse(
            max_msg_size=2 * max_bytes,
            compress=False,
            autoping=False,
            autoclose=False,
            timeout=CLOSE_S,
            protocols=protocols,
            writer_limit=4096,
        )
        headers_back = inner._response.headers
        for name in RETURNED_HEADERS:
            if name in headers_back:
                outer.headers[name] = headers_back[name]
        outer.headers["Server"] = SERVER
        request[REQUEST_ID] = headers_back.get("X-Request-Id", request[REQUEST_ID])
        log_event(logging.INFO, "passed on", request=request[REQUEST_ID])
        try:
            await outer.prepare(request)
            directions = [
                asyncio.ensure_future(forward_messages(outer, inner)),
                asyncio.ensure_future(forward_messages(inner, outer)),
            ]
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
        finally:
            await close_both(outer, inner)
        return outer


Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def forward_messages(source: Socket, target: Socket) -> None:
    """Everything that comes from one side, to the other, until one of them ends."""
    while True:
        message = await source.receive()
        if message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type is WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is WSMsgType.PING:
            await target.ping(message.data)
        elif message.type is WSMsgType.PONG:
            await target.pong(message.data)
        elif message.type is WSMsgType.CLOSE:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await target.close(code=message.data or 1000, message=(message.extra or "").encode())
            return
        else:
            return


async def close_both(outer: web.WebSocketResponse, inner: aiohttp.ClientWebSocketResponse) -> None:
    """Both ends are closed. A client that vanished without a word must vanish for the sister too."""
    if not inner.closed:
        connection = inner._response.connection
        if outer.close_code is None or outer.close_code == WSCloseCode.ABNORMAL_CLOSURE:
            if connection is not None and connection.transport is not None:
                connection.transport.abort()
        else:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await inner.close()
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await outer.close(code=inner.close_code or WSCloseCode.INTERNAL_ERROR)


def handshake_rejected(error: aiohttp.WSServerHandshakeError) -> web.Response:
    """The sister's answer to a handshake that she refuses; her words are not kept by the client library."""
    headers = {
        name: error.headers[name] for name in RETURNED_HEADERS if error.headers and name in error.headers
    }
    body = {
        "err_code": "RESUME" if error.status == 410 else "REFUSED",
        "err_msg": "There is no session to resume by this id.",
        "advice": "It ended, or was gone too long: begin a new one.",
    }
    return web.json_response(body, status=error.status, headers=headers)
