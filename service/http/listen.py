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
from lm.hotwords import Hotword
from lm.text import normalise
from service.audio.decoder import SoundDecoder
from service.audio.pcm import WIDTHS
from service.dialects.commands import Command, KeepAlive, ListenRequest, Refuse, Say, Warn
from service.dialects.deepgram import DeepgramDialect, StreamFacts
from service.dialects.dialect import Dialect
from service.dialects.query import read_query
from service.dialects.vosk import VoskDialect
from service.dialects.written import uuid_of
from service.errors import ErrorCode, ServiceError
from service.http.auth import SUBPROTOCOLS, key_of
from service.http.client_socket import CLOSE_S, ClientSocket
from service.http.conversation import Conversation
from service.http.headers import REQUEST_ID, set_headers
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
        raise ServiceError(
            ErrorCode.CAPACITY, "All streams are in use.", "Try again soon.", retry_after_s=2.0
        )
    state.listening.enter_socket("vosk")
    try:
        limit = state.settings.max_message_bytes
        socket = socket_for(limit)
        await upgrade(request, socket)
        dialect = VoskDialect()
        client = ClientSocket(state, socket, dialect, limit)
        await converse_when_configured(state, client, lambda: open_vosk(state, dialect, key))
        return socket
    finally:
        state.listening.leave_socket("vosk")


def open_vosk(state: State, dialect: VoskDialect, key: Key) -> Session:
    """A stream for vosk's protocol, as its messages have configured it."""
    decoder = SoundDecoder("linear16", dialect.request.sample_rate, 1, True, None, lambda *_: None)
    state.keys.take(key)
    return open_session(
        state, dialect.request, lambda *_: dialect, decoder, key, lambda: state.keys.release(key)
    )


async def converse_when_configured(
    state: State,
    client: ClientSocket,
    open_stream: Callable[[], Session],
    *,
    greeting: str | None = None,
    idle_timeout_s: float | None = None,
) -> None:
    """For protocols whose messages configure the stream: it is opened by the first command that needs it."""
    opened: tuple[Session, list[Command]] | None = None
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
    await Conversation(state, session, client).run(0, commands)


async def first_commands(
    client: ClientSocket, open_stream: Callable[[], Session], idle_timeout_s: float
) -> tuple[Session, list[Command]] | None:
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
            if isinstance(command, Say):
                await client.send(command.text)
            elif isinstance(command, Refuse):
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


def check_accepting(state: State) -> None:
    """Nothing new is taken in while draining."""
    if state.draining:
        raise ServiceError(
            ErrorCode.DRAINING,
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

    state.keys.take(key)
    return open_session(state, asked, speak, decoder, key, lambda: state.keys.release(key))


def open_session(
    state: State,
    asked: ListenRequest,
    speak: Callable[[str, str], Dialect],
    decoder: SoundDecoder,
    key: Key,
    release: Callable[[], None],
    idle_timeout_s: float | None = None,
) -> Session:
    """Take a stream of the recogniser's. `release` gives back the key's slot, exactly once, and also if this fails.

    `speak` answers the dialect of a stream with this id and model.
    """
    try:
        recogniser = state.models.pick(asked.model)
        stream = _open_stream(state, recogniser, asked, key, idle_timeout_s or state.settings.idle_timeout_s)
    except BaseException:
        release()
        raise
    session = Session(
        stream=stream,
        recogniser=recogniser,
        request=asked,
        dialect=speak(stream.id, recogniser.model_name),
        decoder=decoder,
        key=key,
        began_s=state.clock(),
        release=release,
    )
    state.listening.add(session)
    say(logging.INFO, "stream opened", session=session.id, key=key.name, model=recogniser.model_name)
    return session


def _open_stream(
    state: State, recogniser: Recogniser, asked: ListenRequest, key: Key, idle_timeout_s: float
) -> Stream:
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
        idle_limit_s=idle_timeout_s,
        progress_every_s=settings.heartbeat_interval_s if asked.extensions else None,
    )
    try:
        return recogniser.open(wanted)
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


async def converse(
    request: web.Request, state: State, session: Session, *, resumed: bool, after: int
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
            state.listening.park(session)
        else:
            session.stream.cancel("never_connected")
            state.listening.forget(session)
        raise
    client = ClientSocket(state, socket, session.dialect, limit)
    await Conversation(state, session, client, resumed).run(after)
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
