"""GET /v1/realtime?intent=transcription: OpenAI's realtime socket. The protocol is in protocols/openai_realtime.py.

The first audio opens the stream, when the session's settings are known. From then on the connection works as on
/v1/listen, with its own idle timeout and message limit, and without resuming.
"""

import uuid

from aiohttp import web

from service.audio.decoder import AudioDecoder
from service.auth.keys import Key
from service.errors import ErrorCode, ServiceError
from service.http.app_state import APP_STATE, AppState
from service.http.auth import key_of
from service.http.client_socket import ClientSocket
from service.http.client_streams import ClientStream
from service.http.listen import (
    check_accepting,
    check_upgrade,
    make_websocket,
    open_client_stream,
    run_when_configured,
    upgrade,
)
from service.protocols.openai_realtime import RealtimeProtocol

IDLE_TIMEOUT_S = 900.0
"""Much longer than `idle_timeout_s`: this protocol has no keep-alive, and push-to-talk clients may be silent for
minutes."""
MAX_MESSAGE_BYTES = 20 * 1024 * 1024
"""OpenAI allows 15 MiB of audio in one message, which is 20 MiB of base64."""


def add_realtime_routes(app: web.Application) -> None:
    """Add the route."""
    app.router.add_get("/v1/realtime", realtime)


async def realtime(request: web.Request) -> web.StreamResponse:
    """Serve one socket. It occupies one of the key's stream slots from the start, with or without audio."""
    state, key = request.app[APP_STATE], key_of(request)
    check_upgrade(request)
    check_accepting(state)
    if request.query.get("intent", "transcription") != "transcription":
        raise ServiceError(
            ErrorCode.REQUEST, "Only intent=transcription is supported.", "This server only transcribes."
        )
    state.client_streams.socket_opened("openai")
    try:
        state.keys.acquire_stream(key)
        try:
            websocket = make_websocket(MAX_MESSAGE_BYTES, protocols=("realtime",))
            await upgrade(request, websocket)
            model = request.query.get("model") or state.models.names[0]
            protocol = RealtimeProtocol(uuid.uuid4().hex, model)
            await run_when_configured(
                state,
                ClientSocket(state, websocket, protocol, MAX_MESSAGE_BYTES),
                lambda: open_realtime(state, protocol, key),
                greeting=protocol.created(),
                idle_timeout_s=IDLE_TIMEOUT_S,
            )
            return websocket
        finally:
            state.keys.release_stream(key)
    finally:
        state.client_streams.socket_closed("openai")


def open_realtime(state: AppState, protocol: RealtimeProtocol, key: Key) -> ClientStream:
    """Open a stream with the session's settings. The socket keeps the key's slot."""
    request = protocol.settings.request
    audio_decoder = AudioDecoder(request.encoding, request.sample_rate)
    return open_client_stream(
        state, request, lambda *_: protocol, audio_decoder, key, lambda: None, idle_timeout_s=IDLE_TIMEOUT_S
    )
