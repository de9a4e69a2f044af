"""The two websocket faces: /v1/listen speaks Deepgram's dialect, /vosk vosk's. Accepts, refuses, and hands over.

Everything that can be refused is refused before the upgrade, as an HTTP answer. What follows is conversation.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

from aiohttp import WSMsgType, web

from acoustic.errors import AcousticError
from lm.errors import LanguageError
from lm.hotwords import Hotword
from lm.text import normalise
from service.audio.decoder import SoundDecoder
from service.audio.pcm import WIDTHS
from service.dialects.commands import Audio, Command, KeepAlive, ListenRequest, Refuse, Warn
from service.dialects.deepgram import DeepgramDialect, StreamFacts
from service.dialects.dialect import Dialect
from service.dialects.query import read_query
from service.dialects.vosk import VoskDialect
from service.dialects.written import uuid_of
from service.errors import ServiceError
from service.http.answers import REQUEST_ID, SERVER
from service.http.auth import SUBPROTOCOLS, key_of
from service.http.conversation import CLOSE_S, Conversation, count_closed
from service.http.sessions import Session
from service.http.sisters import pass_on
from service.http.state import STATE, State
from service.keys import Key
from service.logs import say
from service.metrics import build_version
from service.readable import readable
from service.streams import Recogniser, Stream, StreamSettings


async def listen(request: web.Request) -> web.StreamResponse:
    """GET /v1/listen: a new stream, or a session resumed."""
    state = request.app[STATE]
    check_upgrade(request)
    asked = read_query(request.query.items())
    key = key_of(request)
    state.listening.enter_socket("deepgram")
    try:
        sister = state.sisters.owner(asked.resume) if asked.resume and state.sisters else None
        if sister is not None:
            return await pass_on(request, sister, state.settings.max_message_bytes)
        if asked.resume is not None:
            session = await state.listening.resume(asked.resume, key, asked.after)
            say(logging.INFO, "resumed", session=session.id, after=asked.after)
        else:
            check_accepting(state)
            if asked.encoding is not None and asked.encoding not in WIDTHS:
                state.listening.nursery.check_room()
            session = open_deepgram(request, state, asked, key)
        return await converse(request, state, session, resumed=asked.resume is not None, after=asked.after)
    finally:
        state.listening.leave_socket("deepgram")


async def vosk(request: web.Request) -> web.StreamResponse:
    """GET /vosk: the stream is opened with the first sound, when its configuration is known."""
    state = request.app[STATE]
    check_upgrade(request)
    check_accepting(state)
    key = key_of(request)
    room = state.models.pick(None).capacity()
    if room.streams >= room.streams_most:
        raise ServiceError("capacity", "All streams are in use.", "Try again soon.", retry_after_s=2.0)
    state.listening.enter_socket("vosk")
    try:
        socket = socket_for(state)
        await upgrade(request, socket)
        dialect = VoskDialect()
        first: tuple[Command, ...] = ()
        try:
            async with asyncio.timeout(state.settings.idle_timeout_s):
                while not first:
                    message = await socket.receive()
                    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                        if message.type is WSMsgType.PING:
                            await socket.pong(message.data)
                            continue
                        return turned_away(state, socket)
                    commands = dialect.receive(message.data)
                    for command in commands:
                        if isinstance(command, Refuse):
                            raise ServiceError("DATA-0001", command.message, command.advice)
                    first = tuple(one for one in commands if not isinstance(one, KeepAlive | Warn))
            decoder = SoundDecoder("linear16", dialect.request.sample_rate, 1, True, None, lambda *_: None)
            session = open_session(state, dialect.request, lambda *_: dialect, decoder, key)
        except TimeoutError:
            await socket.close(code=1011, message=b"NET-0001: no sound and no configuration came")
            return turned_away(state, socket, 1011)
        except ServiceError as error:
            code = 1008 if error.code == "DATA-0001" else 1013
            await socket.close(code=code, message=f"{error.code.upper()}: {error.message}".encode()[:120])
            return turned_away(state, socket, code)
        if isinstance(first[0], Audio):
            session.received_bytes += len(first[0].data)
        await Conversation(state, session, socket).run(0, first)
        return socket
    finally:
        state.listening.leave_socket("vosk")


def turned_away(
    state: State, socket: web.WebSocketResponse, code: int | None = None
) -> web.WebSocketResponse:
    """A socket of vosk's that ended before it had a stream, by us with this code or by the client: counted."""
    count_closed(state.metrics, "vosk", code or socket.close_code or 1006)
    return socket


async def upgrade(request: web.Request, socket: web.WebSocketResponse) -> None:
    """Answer the handshake; ServiceError "gone" when nobody is there any more."""
    try:
        await socket.prepare(request)
    except ConnectionError:
        raise ServiceError("gone", "The client went away before it was answered.") from None


def check_upgrade(request: web.Request) -> None:
    """These addresses speak websocket only (to GET)."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise ServiceError(
            "upgrade",
            f"{request.path} is a websocket.",
            "Connect with ws:// or wss://; see /v1/models for HTTP.",
        )


def check_accepting(state: State) -> None:
    """Nothing new is taken in while draining."""
    if state.draining:
        raise ServiceError(
            "draining",
            "This server is being stopped.",
            "Connect again: another will answer.",
            retry_after_s=5.0,
        )


def open_deepgram(request: web.Request, state: State, asked: ListenRequest, key: Key) -> Session:
    """A stream for Deepgram's dialect, with its facts and its sound decoder."""
    settings = state.settings
    mix = not asked.multichannel
    warn_later: list[Warn] = []
    dialect: DeepgramDialect | None = None

    def warn(code: str, message: str, advice: str) -> None:
        told = Warn(code, message, advice)
        if dialect is None:
            warn_later.append(told)
        elif dialect.warn(told):
            state.metrics.warnings.labels(code).inc()

    decoder = SoundDecoder(
        asked.encoding, asked.sample_rate, asked.channels, mix, state.listening.nursery, warn
    )

    def speak(stream_id: str, model: str) -> DeepgramDialect:
        nonlocal dialect
        facts = StreamFacts(
            request_id=stream_id,
            model=model,
            model_uuid=uuid_of(model),
            version=build_version(),
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            resume_s=settings.resume_timeout_s,
            max_message_bytes=settings.max_message_bytes,
        )
        dialect = DeepgramDialect(asked, facts, readable(asked.figures, asked.punctuate))
        for told in warn_later:
            if dialect.warn(told):
                state.metrics.warnings.labels(told.code).inc()
        return dialect

    return open_session(state, asked, speak, decoder, key)


def open_session(
    state: State,
    asked: ListenRequest,
    speak: Callable[[str, str], Dialect],
    decoder: SoundDecoder,
    key: Key,
) -> Session:
    """Take the key's slot and the recogniser's; both are given back exactly once, by `release`.

    `speak` answers the dialect of a stream with this id and model.
    """
    recogniser = state.models.pick(asked.model)
    state.keys.take(key)
    try:
        stream = _open_stream(state, recogniser, asked, key)
    except BaseException:
        state.keys.release(key)
        raise
    session = Session(
        stream=stream,
        recogniser=recogniser,
        request=asked,
        dialect=speak(stream.id, recogniser.model_name),
        decoder=decoder,
        key=key,
        began_s=state.clock(),
        release=lambda: state.keys.release(key),
    )
    state.listening.add(session)
    say(logging.INFO, "stream opened", session=session.id, key=key.name, model=recogniser.model_name)
    return session


def _open_stream(state: State, recogniser: Recogniser, asked: ListenRequest, key: Key) -> Stream:
    settings = state.settings
    endpointing = settings.endpointing_ms if asked.endpointing_ms == -1 else asked.endpointing_ms
    wanted = StreamSettings(
        channels=asked.heard_channels,
        interim=asked.interim,
        endpointing_ms=endpointing,
        utterance_end_ms=asked.utterance_end_ms,
        max_utterance_s=settings.max_utterance_s,
        hotwords=tuple(
            Hotword(spelled, one.weight) for one in asked.hotwords if (spelled := normalise(one.phrase))
        ),
        n_best=asked.alternatives,
        priority="batch" if asked.source_is_file else "live",
        declared_file=asked.source_is_file,
        decoder=settings.decoder,
        owner=key.id,
        idle_limit_s=settings.idle_timeout_s,
        progress_every_s=settings.heartbeat_interval_s if asked.extensions else None,
    )
    try:
        return recogniser.open(wanted)
    except (LanguageError, AcousticError) as error:
        raise ServiceError("request", str(error)) from None


def socket_for(state: State) -> web.WebSocketResponse:
    """A websocket with our limits. Pings are answered by the conversation: they count as life."""
    return web.WebSocketResponse(
        # Over the soft limit the client is told why; beyond twice that the socket just closes with 1009.
        max_msg_size=2 * state.settings.max_message_bytes,
        compress=False,
        autoping=False,
        timeout=CLOSE_S,
        protocols=SUBPROTOCOLS,
        # Small, so that a client that does not read is noticed before much has been piled up for it.
        writer_limit=4096,
    )


async def converse(
    request: web.Request, state: State, session: Session, *, resumed: bool, after: int
) -> web.StreamResponse:
    """Upgrade and talk; a client that is gone before the upgrade leaves nothing behind but what it came back for."""
    socket = socket_for(state)
    request[REQUEST_ID] = session.id
    for header in ("X-Request-Id", "dg-request-id", "Silica-Session"):
        socket.headers[header] = session.id
    socket.headers["Server"] = SERVER
    try:
        await upgrade(request, socket)
    except BaseException:
        if resumed and not state.draining:
            state.listening.park(session)
        else:
            session.stream.cancel("never_connected")
            state.listening.forget(session)
        raise
    await Conversation(state, session, socket, resumed).run(after)
    return socket


async def belongings(app: web.Application) -> AsyncIterator[None]:
    """The confined decoders and the sessions live as long as the application."""
    listening = app[STATE].listening
    if listening.nursery.most:
        listening.nursery.start()
    listening.start()
    yield
    listening.close()
    await asyncio.to_thread(listening.nursery.stop)


def add_listen_routes(app: web.Application) -> None:
    """Both websocket faces."""
    app.router.add_get("/v1/listen", listen)
    app.router.add_get("/vosk", vosk)
    app.cleanup_ctx.append(belongings)
