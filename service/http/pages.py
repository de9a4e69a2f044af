"""The page that a browser gets: the files of web/, with headers that let it load nothing from elsewhere.

Adds routes to an aiohttp application; knows no stream, no model and no key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import MappingProxyType

from aiohttp import web

import service

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

FOLDER = Path(service.__file__).resolve().parent.parent / "web"

# `wss:` and `ws:` to the page's own host are covered by 'self' in every current browser. Trusted types
# with no policy at all means: no script on this page can ever turn a string into markup.
SECURITY_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
        "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
)

TYPES = MappingProxyType(
    {
        ".html": "text/html",
        ".css": "text/css",
        ".js": "text/javascript",
        ".yaml": "application/yaml",
        ".svg": "image/svg+xml",
        ".webmanifest": "application/manifest+json",
    }
)


def page_files(folder: Path = FOLDER) -> dict[str, Path]:
    """Every file that may be served, by its address. Nothing else can be asked for."""
    found = {
        "/" + path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }
    found["/"] = folder / "index.html"
    return found


def add_page_routes(app: web.Application, folder: Path = FOLDER) -> None:
    """Serve the page at `/` and its modules beside it; `web/` is read when the server starts."""
    app.router.add_get("/openapi.yaml", _answer_with(Path(service.__file__).parent / "openapi.yaml"))
    for address, path in page_files(folder).items():
        app.router.add_get(address, _answer_with(path))


def _answer_with(path: Path) -> Handler:
    """A handler for this one file; FileResponse brings ETag, ranges and 304 with it."""
    headers = {**SECURITY_HEADERS, "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.FileResponse(path, headers=headers)

    return answer
