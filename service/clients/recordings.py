"""The client's side of POST /v1/listen: a whole recording sent, its words taken back. Prints nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from service.clients.http import HttpClient

PIECE_BYTES = 1 << 18


class RecordingsClient(HttpClient):
    """`async with RecordingsClient(server, key) as client: answer = await client.transcribe(path)`."""

    async def transcribe(
        self,
        path: Path,
        *,
        model: str | None = None,
        hotwords: Sequence[str] = (),
        sent: Callable[[float], None] = lambda share: None,
    ) -> dict[str, Any]:
        """Deepgram's document; `sent` is told how much of the file has gone out, 0 to 1."""
        query = [*([("model", model)] if model else []), *(("keyterm", phrase) for phrase in hotwords)]
        headers = {"Content-Type": "application/octet-stream"}
        with path.open("rb") as file:
            body = _pieces(file, sent)
            return dict(await self._ask("POST", "/v1/listen", params=query, data=body, headers=headers))


async def _pieces(file: BinaryIO, sent: Callable[[float], None]) -> AsyncIterator[bytes]:
    total, gone = max(1, os.fstat(file.fileno()).st_size), 0
    while piece := file.read(PIECE_BYTES):
        yield piece
        gone += len(piece)
        sent(gone / total)
