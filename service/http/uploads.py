"""Request bodies as files on disk: bounded, hashed, gone when the request is. Memory stays flat."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from service.errors import ErrorCode, ServiceError
from service.http.app_state import APP_STATE

MAX_FIELD_BYTES = 64 * 1024
MAX_FIELDS = 256
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Upload:
    """A body that lies on disk."""

    path: Path
    name: str
    bytes: int
    sha256: str


@dataclass
class Form:
    """A multipart form: its one file and its text fields."""

    file: Upload | None = None
    fields: dict[str, list[str]] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def temporary_folder(beside: Path | None = None) -> AsyncIterator[Path]:
    """A folder of this request; `beside` puts it on the disk where the file will stay."""
    with tempfile.TemporaryDirectory(prefix="silica-upload-", dir=beside) as folder:
        yield Path(folder)


async def receive_body(request: web.Request, folder: Path, max_bytes: int) -> Upload:
    """The whole body; ServiceError "size" when it is larger than allowed."""
    _check_content_length(request, max_bytes)
    async with _receiving(request):
        return await _store(request.content.iter_chunked(PIECE_BYTES), folder / "body", "body", max_bytes)


async def receive_form(request: web.Request, folder: Path, max_bytes: int) -> Form:
    """A multipart form whose field `file` goes to disk; everything else must be short text."""
    _check_content_length(request, max_bytes)
    if not request.content_type.startswith("multipart/"):
        raise ServiceError(
            ErrorCode.REQUEST,
            f"Expected multipart/form-data, not {request.content_type or 'nothing'}.",
            "Send the sound as the form field `file`.",
        )
    async with _receiving(request):
        return await _read_form(request, folder, max_bytes)


@contextlib.asynccontextmanager
async def _receiving(request: web.Request) -> AsyncIterator[None]:
    """ServiceError "gone" when the client goes away while it sends, "stalled" when it stays and sends nothing."""
    limit_s = request.app[APP_STATE].settings.upload_timeout_s
    loop, seen = asyncio.get_running_loop(), -1
    watch: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal seen, watch
        if request.content.total_bytes == seen:
            limit.reschedule(loop.time())
            return
        seen = request.content.total_bytes
        watch = loop.call_later(limit_s, look)

    try:
        async with asyncio.timeout(None) as limit:
            look()
            yield
    except ConnectionError:
        raise ServiceError(ErrorCode.GONE, "The client went away while it was sending.") from None
    except TimeoutError:
        raise ServiceError(
            ErrorCode.STALLED,
            f"Nothing of the file came for {limit_s:g} s.",
            "Send it again, without a pause.",
        ) from None
    finally:
        if watch is not None:
            watch.cancel()


async def _read_form(request: web.Request, folder: Path, max_bytes: int) -> Form:
    form = Form()
    try:
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader) or part.name is None:
                continue
            if part.name == "file":
                if form.file is not None:
                    raise ServiceError(
                        ErrorCode.REQUEST, "There are two fields `file`.", "Send one file a request."
                    )
                form.file = await _store(_part(part), folder / "file", part.filename or "file", max_bytes)
                continue
            if sum(len(values) for values in form.fields.values()) >= MAX_FIELDS:
                raise ServiceError(ErrorCode.REQUEST, f"More than {MAX_FIELDS} form fields.", "Send fewer.")
            form.fields.setdefault(part.name, []).append(await _text(part))
    except (ValueError, AssertionError, RuntimeError, HttpProcessingError) as error:
        raise ServiceError(
            ErrorCode.REQUEST, f"The multipart form cannot be read: {error}.", "Was it cut off?"
        ) from None
    return form


def _check_content_length(request: web.Request, max_bytes: int) -> None:
    """Refuse what is announced as too large before it travels."""
    if request.content_length is not None and request.content_length > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> ServiceError:
    return ServiceError(
        ErrorCode.SIZE,
        f"The file is larger than {max_bytes // 1024**2} MiB, the most that is taken.",
        "Compress or split it.",
    )


async def _part(part: BodyPartReader) -> AsyncIterator[bytes]:
    while piece := await part.read_chunk(PIECE_BYTES):
        yield piece


async def _text(part: BodyPartReader) -> str:
    found = bytearray()
    while piece := await part.read_chunk(8192):
        found += piece
        if len(found) > MAX_FIELD_BYTES:
            raise ServiceError(
                ErrorCode.REQUEST,
                f"The form field {str(part.name)[:40]!r} is too long.",
                "Only `file` may be.",
            )
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise ServiceError(
            ErrorCode.REQUEST, f"The form field {str(part.name)[:40]!r} is no UTF-8 text."
        ) from None


async def _store(pieces: AsyncIterator[bytes], path: Path, name: str, max_bytes: int) -> Upload:
    """To disk, written beside the event loop."""
    digest, size = hashlib.sha256(), 0
    file = path.open("wb")  # not beside the event loop: given up then, nobody would close it
    try:
        async for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            digest.update(piece)
            try:
                await asyncio.to_thread(file.write, piece)
            except OSError as error:
                raise ServiceError(
                    ErrorCode.STORAGE, f"The file cannot be kept: {error.strerror}.", "Try later."
                ) from None
    finally:
        await asyncio.to_thread(file.close)
    return Upload(path, name, size, digest.hexdigest())
