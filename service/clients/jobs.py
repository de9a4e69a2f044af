"""The client's side of /v1/jobs: send, watch, fetch, cancel. Prints nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from service.errors import ServiceError


class JobsClient:
    """`async with JobsClient(server, key) as client: job = await client.add(path, {})`."""

    def __init__(self, server: str, key: str | None = None) -> None:
        self.server = (
            server.rstrip("/").replace("ws", "http", 1) if server.startswith("ws") else server.rstrip("/")
        )
        self._headers = {"Authorization": f"Token {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> JobsClient:
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=None)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def add(self, path: Path, fields: Mapping[str, str]) -> dict[str, Any]:
        """A new job; the same file with the same fields again is the same job."""
        digest = hashlib.sha256(repr(sorted(fields.items())).encode())
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
            file.seek(0)
            form = aiohttp.FormData()
            for name, value in fields.items():
                form.add_field(name, value)
            form.add_field("file", file, filename=path.name)
            headers = {"Idempotency-Key": f"cli-{digest.hexdigest()}"}
            return dict(await self._ask("POST", "/v1/jobs", data=form, headers=headers))

    async def show(self, id: str) -> dict[str, Any]:
        """How far it is."""
        return dict(await self._ask("GET", f"/v1/jobs/{id}"))

    async def list(self, status: str | None = None) -> list[dict[str, Any]]:
        """Newest first."""
        query = {"status": status} if status else {}
        return list((await self._ask("GET", "/v1/jobs", params=query))["data"])

    async def transcript(self, id: str, form: str) -> str:
        """What was heard, in one of the formats."""
        return str(
            await self._ask("GET", f"/v1/jobs/{id}/transcript", text=True, params={"response_format": form})
        )

    async def delete(self, id: str) -> None:
        """Cancel it, or forget it when it is over."""
        await self._ask("DELETE", f"/v1/jobs/{id}", text=True)

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
        raise ServiceError(
            str(told.get("err_code", "request")).lower(), str(told.get("err_msg")), told.get("advice", "")
        )
