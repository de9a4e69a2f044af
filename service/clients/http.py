"""What the clients of a server's HTTP side share: the address, the key, refusals as ServiceErrors, and patience."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from service.clients import KEY_ADVICE, server_address, untrusted
from service.errors import ErrorCode, ServiceError, find_error_code

Response = TypeVar("Response")
MAX_RETRY_S = 900.0
MAX_WAIT_S = 30.0


async def with_retries(
    ask: Callable[[], Awaitable[Response]],
    on_wait: Callable[[ServiceError], None],
    max_retry_s: float = MAX_RETRY_S,
) -> Response:
    """Ask again as long as the server says when to (503 and 429 with Retry-After); `on_wait` is told once why.

    A full disk is not waited for here: who sends jobs may have to take some back first.
    """
    began_s, body = time.monotonic(), False
    while True:
        try:
            return await ask()
        except ServiceError as error:
            wait_s = error.retry_after_s
            if (
                wait_s is None
                or error.code == ErrorCode.STORAGE
                or time.monotonic() - began_s + wait_s > max_retry_s
            ):
                raise
            if not body:
                on_wait(error)
                body = True
        await asyncio.sleep(min(wait_s, MAX_WAIT_S))


def _reason(error: OSError) -> str:
    """In the system's plain words: asyncio puts its own text in their place."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or "no connection"


class HttpClient:
    """`async with` it; a subclass adds what can be asked."""

    def __init__(self, server: str, key: str | None = None) -> None:
        self.server = server_address(server, "http")
        self._headers = {"Authorization": f"Token {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=None)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, address: str, *, text: bool = False, **more: Any) -> Any:
        assert self._session is not None, "use it with `async with`"
        try:
            async with self._session.request(method, self.server + address, **more) as answer:
                if answer.status < 400:
                    return await answer.text() if text else await answer.json()
                body = await answer.json(content_type=None)
        except aiohttp.ClientSSLError as error:
            raise untrusted(self.server, error.os_error) from None
        except aiohttp.ClientConnectorError as error:
            raise ServiceError(
                ErrorCode.NETWORK,
                f"Nobody answers at {self.server} ({_reason(error.os_error)}).",
                "Is it running? `silica serve` says where it listens.",
            ) from None
        except aiohttp.ClientError as error:
            raise ServiceError(
                ErrorCode.NETWORK,
                f"The answer from {self.server} broke off: {error}.",
                "Is it still running?",
            ) from None
        except ValueError:
            raise ServiceError(
                ErrorCode.NETWORK, f"{self.server} did not answer as a Silica server does."
            ) from None
        if not isinstance(body, dict):
            raise ServiceError(ErrorCode.NETWORK, f"{self.server} did not answer as a Silica server does.")
        code = find_error_code(str(body.get("err_code", "request")))
        raise ServiceError(
            code,
            str(body.get("err_msg")),
            KEY_ADVICE if code is ErrorCode.KEY else body.get("advice", ""),
            retry_after_s=body.get("retry_after_s"),
        )
