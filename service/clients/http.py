"""What the clients of a server's HTTP side share: the address, the key, and refusals as ServiceErrors."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import aiohttp

from service.errors import ServiceError


class HttpClient:
    """`async with` it; a subclass adds what can be asked."""

    def __init__(self, server: str, key: str | None = None) -> None:
        address = server.rstrip("/")
        self.server = address.replace("ws", "http", 1) if address.startswith("ws") else address
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
                told = await answer.json(content_type=None)
        except aiohttp.ClientError as error:
            raise ServiceError(
                "network", f"No answer from {self.server}: {error}.", "Is it running?"
            ) from None
        except ValueError:
            raise ServiceError("network", f"{self.server} did not answer as a Silica server does.") from None
        if not isinstance(told, dict):
            raise ServiceError("network", f"{self.server} did not answer as a Silica server does.")
        raise ServiceError(
            str(told.get("err_code", "request")).lower(), str(told.get("err_msg")), told.get("advice", "")
        )
