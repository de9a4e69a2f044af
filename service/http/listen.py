"""The two websocket faces: /v1/listen speaks Deepgram's dialect, /vosk vosk's. Accepts, refuses, and hands over.

Everything that can be refused is refused before the upgrade, as an HTTP answer. What follows is conversation.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

from aiohttp import web

from acoustic.errors import AcousticError
from lm.errors import LanguageError
from lm.search.hotwords import Hotword
from lm.text.normalize import normalize
from service.audio.decoder import AudioDecoder
from service.audio.pcm import BYTES_PER_SAMPLE
from service.auth.keys import Key
from service.errors import ErrorCode, ServiceError
from service.http.app_state import APP_STATE, AppState
from service.http.auth import SUBPROTOCOLS, key_of
from service.http.client_socket import CLOSE_S, ClientSocket
from service.http.client_streams import ClientStream
from service.http.headers import REQUEST_ID, set_headers
from service.http.peers import proxy_websocket
from service.http.websocket_connection import WebSocketConnection
from service.logs import log_event
from service.metrics import build_version
from service.output.formatting import formatter
from service.protocols.commands import Command, KeepAlive, ListenRequest, Reject, SendText, Warn
from service.protocols.deepgram import DeepgramProtocol, StreamFacts
from service.protocols.formatted_words import uuid_of
from service.protocols.query import read_query
from service.protocols.vosk import VoskProtocol
from service.protocols.wire_protocol import WireProtocol
from service.recognizer import Recognizer, Stream, StreamSettings


async def listen(request: web.Request) -> web.StreamResponse:
    """GET /v1/listen: a new stream, or a session resumed."""
    state = request.app[APP_STATE]
    check_upgrade(request)
    options = read_query(request.query.items())
    key = key_of(request)
    state.client_streams.socket_opened("deepgram")
    try:
        peer = state.peers.owner(options.resume) if options.resume and state.peers else None
        if peer is not None:
            return await proxy_websocket(request, peer, state.settings.max_message_bytes)
        if options.resume is not None:
            session = await state.client_streams.resume(options.resume, key, options.after)
            log_event(logging.INFO, "resumed", session=session.id, after=options.after)
        else:
            check_accepting(state)
            if options.encoding is not None and options.encoding not in BYTES_PER_SAMPLE:
                state.client_streams.audio_decoders.check_free()
            session = open_deepgram(request, state, options, key)
        return await run_connection(
            request, state, session, resumed=options.resume is not None, after=options.after
        )
    finally:
        state.client_streams.socket_closed("deepgram")


async def vosk(request: web.Request) -> web.StreamResponse:
    """GET /vosk: the stream is opened with the first sound, when its configuration is known."""
    state = request.app[APP_STATE]
    check_upgrade(request)
    check_accepting(state)
    key = key_of(request)
    room = state.models.pick(None).capacity()
    if room.streams >= room.stream_capacity:
        raise ServiceError(
            ErrorCode.CAPACITY, "All streams are in use.", "Try again soon.", retry_after_s=2.0
        )
    state.client_streams.socket_opened("vosk")
    try:
        limit = state.settings.max_message_bytes
        socket = socket_for(limit)
        await upgrade(request, socket)
        protocol = VoskProtocol()
        client = ClientSocket(state, socket, protocol, limit)
        await converse_when_configured(state, client, lambda: open_vosk(state, protocol, key))
        return socket
    finally:
        state.client_streams.socket_closed("vosk")


def open_vosk(state: AppState, protocol: VoskProtocol, key: Key) -> ClientStream:
    """A stream for vosk's protocol, as its messages have configured it."""
    decoder = AudioDecoder("linear16", protocol.request.sample_rate, 1, True, None, lambda *_: None)
    state.keys.acquire_stream(key)
    return open_session(
        state, protocol.request, lambda *_: protocol, decoder, key, lambda: state.keys.release_stream(key)
    )


async def converse_when_configured(
    state: AppState,
    client: ClientSocket,
    open_stream: Callable[[], ClientStream],
    *,
    greeting: str | None = None,
    idle_timeout_s: float | None = None,
) -> None:
    """For protocols whose messages configure the stream: it is opened by the first command that needs it."""
    opened: tuple[ClientStream, list[Command]] | None = None
    try:
        if greeting is not None:
            await client.send(greeting)
        opened = await first_commands(client, open_stream, idle_timeout_s or state.settings.idle_timeout_s)
    except ServiceError as error:
        await client.refuse(error)
    except TimeoutError:
        await client.close(ErrorCode.SLOW_READER, "nothing was taken for too long")
    except ConnectionError:
        pass  # the client is gone, and nothing was opened for it
    except Exception:
        logging.getLogger("silica").exception("connection failed")
        await client.refuse(
            ServiceError(
                ErrorCode.INTERNAL, "Something went wrong here; it is logged.", "Open a new session."
            )
        )
    if opened is None:
        client.count_closed()
        return
    session, commands = opened
    await WebSocketConnection(state, session, client).run(0, commands)


async def first_commands(
    client: ClientSocket, open_stream: Callable[[], ClientStream], idle_timeout_s: float
) -> tuple[ClientStream, list[Command]] | None:
    """The session, and the commands that are for it. None when the client leaves before it needs one."""
    while True:
        try:
            async with asyncio.timeout(idle_timeout_s) as idle:
                commands = await client.receive()
        except TimeoutError:
            if not idle.expired():
                raise
            raise ServiceError(ErrorCode.IDLE, "no sound and no configuration came") from None
        if commands is None:
            return None
        for index, command in enumerate(commands):
            if isinstance(command, SendText):
                await client.send(command.text)
            elif isinstance(command, Reject):
                raise ServiceError(command.code, command.message, command.advice)
            elif not isinstance(command, KeepAlive | Warn):
                return open_stream(), commands[index:]


async def upgrade(request: web.Request, socket: web.WebSocketResponse) -> None:
    """Answer the handshake; ServiceError "gone" when nobody is there any more."""
    try:
        await socket.prepare(request)
    except ConnectionError:
        raise ServiceError(ErrorCode.GONE, "The client went away before it was answered.") from None


def check_upgrade(request: web.Request) -> None:
    """These addresses speak websocket only (to GET)."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise ServiceError(
            ErrorCode.UPGRADE,
            f"{request.path} is a websocket.",
            "Connect with ws:// or wss://; see /v1/models for HTTP.",
        )


def check_accepting(state: AppState) -> None:
    """Nothing new is taken in while draining."""
    if state.draining:
        raise ServiceError(
            ErrorCode.DRAINING,
            "This server is being stopped.",
            "Connect again: another will answer.",
            retry_after_s=5.0,
        )


def open_deepgram(request: web.Request, state: AppState, options: ListenRequest, key: Key) -> ClientStream:
    """A stream for Deepgram's dialect, with its facts and its sound decoder."""
    settings = state.settings
    mix = not options.multichannel
    pending_warnings: list[Warn] = []
    protocol: DeepgramProtocol | None = None

    def warn(code: str, message: str, advice: str) -> None:
        warning = Warn(code, message, advice)
        if protocol is None:
            pending_warnings.append(warning)
        elif protocol.warn(warning):
            state.metrics.warnings.labels(code).inc()

    decoder = AudioDecoder(
        options.encoding,
        options.sample_rate,
        options.channels,
        mix,
        state.client_streams.audio_decoders,
        warn,
    )

    def make_protocol(stream_id: str, model: str) -> DeepgramProtocol:
        nonlocal protocol
        facts = StreamFacts(
            request_id=stream_id,
            model=model,
            model_uuid=uuid_of(model),
            version=build_version(),
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            resume_s=settings.resume_timeout_s,
            max_message_bytes=settings.max_message_bytes,
        )
        protocol = DeepgramProtocol(options, facts, formatter(options.figures, options.punctuate))
        for warning in pending_warnings:
            if protocol.warn(warning):
                state.metrics.warnings.labels(warning.code).inc()
        return protocol

    state.keys.acquire_stream(key)
    return open_session(state, options, make_protocol, decoder, key, lambda: state.keys.release_stream(key))


def open_session(
    state: AppState,
    options: ListenRequest,
    make_protocol: Callable[[str, str], WireProtocol],
    decoder: AudioDecoder,
    key: Key,
    release: Callable[[], None],
    idle_timeout_s: float | None = None,
) -> ClientStream:
    """Take a stream of the recognizer's. `release` gives back the key's slot, exactly once, and also if this fails.

    `make_protocol` answers the dialect of a stream with this id and model.
    """
    try:
        recognizer = state.models.pick(options.model)
        stream = _open_stream(
            state, recognizer, options, key, idle_timeout_s or state.settings.idle_timeout_s
        )
    except BaseException:
        release()
        raise
    session = ClientStream(
        stream=stream,
        recognizer=recognizer,
        request=options,
        protocol=make_protocol(stream.id, recognizer.model_name),
        decoder=decoder,
        key=key,
        began_s=state.clock(),
        release=release,
    )
    state.client_streams.add(session)
    log_event(logging.INFO, "stream opened", session=session.id, key=key.name, model=recognizer.model_name)
    return session


def _open_stream(
    state: AppState, recognizer: Recognizer, options: ListenRequest, key: Key, idle_timeout_s: float
) -> Stream:
    settings = state.settings
    endpointing = settings.endpointing_ms if options.endpointing_ms == -1 else options.endpointing_ms
    wanted = StreamSettings(
        channels=options.output_channels,
        interim=options.interim,
        endpointing_ms=endpointing,
        utterance_end_ms=options.utterance_end_ms,
        max_utterance_s=settings.max_utterance_s,
        hotwords=tuple(
            Hotword(spelled, one.weight) for one in options.hotwords if (spelled := normalize(one.phrase))
        ),
        n_best=options.alternatives,
        priority="batch" if options.source_is_file else "live",
        faster_than_realtime=options.source_is_file,
        decoder=settings.decoder,
        owner=key.id,
        idle_timeout_s=idle_timeout_s,
        progress_interval_s=settings.heartbeat_interval_s if options.extensions else None,
    )
    try:
        return recognizer.open(wanted)
    except (LanguageError, AcousticError) as error:
        raise ServiceError(ErrorCode.REQUEST, str(error)) from None


def socket_for(max_message_bytes: int, protocols: Sequence[str] = SUBPROTOCOLS) -> web.WebSocketResponse:
    """A websocket with our limits. Pings are answered by `ClientSocket`: they count as life."""
    return web.WebSocketResponse(
        # Over the soft limit the client is told why; beyond twice that the socket just closes with 1009.
        max_msg_size=2 * max_message_bytes,
        compress=False,
        autoping=False,
        timeout=CLOSE_S,
        protocols=protocols,
        # Small, so that a client that does not read is noticed before much has been piled up for it.
        writer_limit=4096,
    )


async def run_connection(
    request: web.Request, state: AppState, session: ClientStream, *, resumed: bool, after: int
) -> web.StreamResponse:
    """Upgrade and talk; a client that is gone before the upgrade leaves nothing behind but what it came back for."""
    limit = state.settings.max_message_bytes
    socket = socket_for(limit)
    request[REQUEST_ID] = session.id
    set_headers(socket, session.id)
    socket.headers["Silica-Session"] = session.id
    try:
        await upgrade(request, socket)
    except BaseException:
        if resumed and not state.draining:
            state.client_streams.park(session)
        else:
            session.stream.cancel("never_connected")
            state.client_streams.forget(session)
        raise
    client = ClientSocket(state, socket, session.protocol, limit)
    await WebSocketConnection(state, session, client, resumed).run(after)
    return socket


async def decoder_and_session_lifespan(app: web.Application) -> AsyncIterator[None]:
    """The confined decoders and the sessions live as long as the application."""
    client_streams = app[APP_STATE].client_streams
    if client_streams.audio_decoders.max_children:
        client_streams.audio_decoders.start()
    client_streams.start()
    yield
    client_streams.close()
    await asyncio.to_thread(client_streams.audio_decoders.stop)


def add_listen_routes(app: web.Application) -> None:
    """Both websocket faces."""
    app.router.add_get("/v1/listen", listen)
    app.router.add_get("/vosk", vosk)
    app.cleanup_ctx.append(decoder_and_session_lifespan)
