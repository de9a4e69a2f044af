"""Who may come in: keys in any of the places clients put them, the origin of browser pages, the host they asked for.

Keys themselves lie in service/auth/keys.py.
"""

from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from service.auth.keys import ANONYMOUS, Key
from service.errors import ErrorCode, ServiceError
from service.http.app_state import APP_STATE
from service.settings import Settings
from service.startup.preflight import is_loopback

GUARDED_PREFIXES = ("/v1/", "/vosk", "/admin/")
KEY: web.RequestKey[Key] = web.RequestKey("key", Key)
SUBPROTOCOLS = ("token", "bearer")
OPENAI_KEY = "openai-insecure-api-key."


def api_key_of(request: web.BaseRequest) -> str | None:
    """The key a client sent: Authorization header, ?token=, or a subprotocol, which is all that browsers can set:
    `token, KEY` as Deepgram has it, `openai-insecure-api-key.KEY` as OpenAI has it."""
    scheme, _, value = request.headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() in SUBPROTOCOLS and value.strip():
        return value.strip()
    if request.query.get("token"):
        return str(request.query["token"])
    offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if len(offered) == 2 and offered[0].lower() in SUBPROTOCOLS:
        return offered[1]
    for part in offered:
        if part.startswith(OPENAI_KEY) and len(part) > len(OPENAI_KEY):
            return part.removeprefix(OPENAI_KEY)
    return None


def split(address: str, what: str) -> SplitResult:
    """An address a client sent, in parts; ServiceError "origin" for what is none."""
    try:
        return urlsplit(address)
    except ValueError:
        raise ServiceError(
            ErrorCode.ORIGIN, f"{what} is no address.", "Send it as HTTP has it: host[:port]."
        ) from None


def check_origin(request: web.BaseRequest, settings: Settings) -> None:
    """Refuse web pages of other origins, and names that merely resolve to this machine (DNS rebinding)."""
    host = (split(f"//{request.host}", f"Host {request.host!r}").hostname or "").lower()
    listed = {(urlsplit(origin).hostname or origin).lower() for origin in settings.allowed_origins}
    if is_loopback(settings.host) and not is_loopback(host) and host not in listed and "*" not in listed:
        raise ServiceError(
            ErrorCode.ORIGIN,
            f"This server listens on loopback only and was asked for as {request.host!r}.",
            "Use localhost, or list that name's origin in `allowed_origins`.",
        )
    origin = request.headers.get("Origin")
    if origin is None or "*" in settings.allowed_origins or origin in settings.allowed_origins:
        return
    page = split(origin, f"Origin {origin!r}").netloc.lower()
    if page != request.host.lower() or not page:
        raise ServiceError(
            ErrorCode.ORIGIN,
            f"Pages of {origin!r} may not connect here.",
            "Add that origin to the setting `allowed_origins` if they should.",
        )


@web.middleware
async def auth_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Guarded routes see request[KEY]; without a good key (where keys are needed) they see nothing."""
    state = request.app[APP_STATE]
    metrics_guarded = request.path == "/metrics" and not state.settings.public_metrics
    if request.path.startswith(GUARDED_PREFIXES) or metrics_guarded:
        check_origin(request, state.settings)
        request[KEY] = state.keys.find(api_key_of(request), state.clock())
    return await handler(request)


def key_of(request: web.Request) -> Key:
    """The key of a guarded request."""
    found: Key = request.get(KEY, ANONYMOUS)
    return found
