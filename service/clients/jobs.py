"""The client's side of /v1/jobs: send, watch, fetch, cancel. Prints nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from service.clients.http import HttpClient, with_retries
from service.errors import ErrorCode, ServiceError

RECONNECT_S = 2.0
"""How often a server that was there and is away is asked again."""


class JobsClient(HttpClient):
    """`async with JobsClient(server, key) as client: job = await client.add(path, {})`."""

    async def add(self, path: Path, fields: Mapping[str, str]) -> dict[str, Any]:
        """A new job; the same file with the same fields again is the same job."""
        digest = hashlib.sha256(repr(sorted(fields.items())).encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            file.seek(0)
            form = aiohttp.FormData()
            for name, value in fields.items():
                form.add_field(name, value)
            form.add_field("file", file, filename=path.name)
            headers = {"Idempotency-Key": f"cli-{digest.hexdigest()}"}
            return dict(await self._request("POST", "/v1/jobs", data=form, headers=headers))

    async def show(self, id: str) -> dict[str, Any]:
        """How far it is."""
        return dict(await self._request("GET", f"/v1/jobs/{id}"))

    async def follow(self, id: str, on_wait: Callable[[ServiceError], None]) -> dict[str, Any]:
        """As `show`; a server that is away, to be started again, is waited for: the job survives that."""

        async def request() -> dict[str, Any]:
            try:
                return await self.show(id)
            except ServiceError as error:
                if error.code == ErrorCode.NETWORK:
                    error.retry_after_s = RECONNECT_S
                raise

        return await with_retries(request, on_wait)

    async def list(self, status: str | None = None) -> list[dict[str, Any]]:
        """Newest first."""
        query = {"status": status} if status else {}
        return list((await self._request("GET", "/v1/jobs", params=query))["data"])

    async def transcript(self, id: str, form: str, **more: str) -> str:
        """What was heard, in one of the formats; `more` as in OpenAI's form."""
        query = {"response_format": form, **more}
        return str(await self._request("GET", f"/v1/jobs/{id}/transcript", text=True, params=query))

    async def delete(self, id: str) -> None:
        """Cancel it, or forget it when it is over."""
        await self._request("DELETE", f"/v1/jobs/{id}", text=True)
