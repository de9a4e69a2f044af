"""GET /v1/realtime?intent=transcription: OpenAI's realtime socket. The wire lies in dialects/openai_realtime.py.

The stream is opened with the first sound, when the session's settings are known. The connection is a conversation as
on /v1/listen, with the two limits below of its own; a client that leaves ends its stream.
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
    converse_when_configured,
    open_session,
    socket_for,
    upgrade,
)
from service.protocols.openai_realtime import RealtimeProtocol

IDLE_TIMEOUT_S = 900.0
"""Far longer than `idle_s`: this protocol has no keep-alive, and who speaks at the push of a button may be silent for
minutes."""
MAX_MESSAGE_BYTES = 20 * 1024 * 1024
"""OpenAI allows 15 MiB of sound in one message, which are 20 MiB of base64."""


def add_realtime_routes(app: web.Application) -> None:
    """The one route."""
    app.router.add_get("/v1/realtime", realtime)


async def realtime(request: web.Request) -> web.StreamResponse:
    """One socket, from its opening to its end. It takes the key's slot at once, sound or not."""
    state, key = request.app[APP_STATE], key_of(request)
    check_upgrade(request)
    check_accepting(state)
    if request.query.get("intent", "transcription") != "transcription":
        raise ServiceError(
            ErrorCode.REQUEST, "Only intent=transcription is served here.", "This server does not speak."
        )
    state.client_streams.socket_opened("openai")
    try:
        state.keys.acquire_stream(key)
        try:
            socket = socket_for(MAX_MESSAGE_BYTES, protocols=("realtime",))
            await upgrade(request, socket)
            model = request.query.get("model") or state.models.names[0]
            protocol = RealtimeProtocol(uuid.uuid4().hex, model)
            await converse_when_configured(
                state,
                ClientSocket(state, socket, protocol, MAX_MESSAGE_BYTES),
                lambda: open_realtime(state, protocol, key),
                greeting=protocol.created(),
                idle_timeout_s=IDLE_TIMEOUT_S,
            )
            return socket
        finally:
            state.keys.release_stream(key)
    finally:
        state.client_streams.socket_closed("openai")


def open_realtime(state: AppState, protocol: RealtimeProtocol, key: Key) -> ClientStream:
    """A stream as the session's settings want it. The key's slot stays with the socket."""
    asked = protocol.settings.request
    decoder = AudioDecoder(asked.encoding, asked.sample_rate)
    return open_session(
        state, asked, lambda *_: protocol, decoder, key, lambda: None, idle_timeout_s=IDLE_TIMEOUT_S
    )
