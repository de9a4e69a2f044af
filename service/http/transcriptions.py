"""Whole files over HTTP: POST /v1/listen (Deepgram, pre-recorded) and POST /v1/audio/transcriptions (OpenAI).

Bodies go to disk, are decoded in confined processes and heard behind the live streams. The wire formats lie
in service/dialects/deepgram_file.py and openai.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from aiohttp import web

from service.core.events import Closed, Event, Final
from service.dialects import deepgram_file, openai
from service.errors import ErrorCode, ServiceError
from service.http.auth import key_of
from service.http.headers import REQUEST_ID
from service.http.state import STATE, State
from service.http.uploads import receive_body, receive_form, scratch
from service.keys import Key
from service.metrics import build_version
from service.readable import readable
from service.recordings import Sound, channels_of, decoded, heard, reached_s
from service.streams import StreamSettings

PROGRESS_S = 5.0


def add_transcription_routes(app: web.Application) -> None:
    """The routes of whole files."""
    app.router.add_post("/v1/listen", listen)
    app.router.add_post("/v1/audio/transcriptions", transcriptions)
    app.router.add_get("/v1/models/{name}", model)


async def listen(request: web.Request) -> web.Response:
    """POST /v1/listen: the body is the file, the query says the rest."""
    state = request.app[STATE]
    wanted = deepgram_file.read_file_query(request.query.items())
    deepgram_file.refuse_url(request.headers.get("Content-Type", ""))
    created = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    recogniser = state.models.pick(wanted.listen.model)
    async with scratch() as folder:
        with charged(state, key_of(request)) as account:
            upload = await receive_body(request, folder, most_bytes(state))
            sound = Sound(
                wanted.listen.encoding,
                wanted.listen.sample_rate,
                wanted.listen.channels if wanted.channels_told else None,
                wanted.listen.multichannel,
            )
            nursery = state.listening.nursery
            channels = await channels_of(upload.path, sound, nursery)
            endpointing = wanted.listen.endpointing_ms
            settings = replace(
                base_settings(state),
                channels=channels,
                hotwords=wanted.listen.hotwords,
                n_best=wanted.listen.alternatives,
            )
            if endpointing != -1:
                settings = replace(settings, endpointing_ms=endpointing)
            samples = decoded(upload.path, sound, channels, nursery)
            async with contextlib.aclosing(heard(recogniser, settings, samples)) as events:
                finals, duration_s = await _all_of(request, events, account)
    facts = deepgram_file.FileFacts(
        request[REQUEST_ID], upload.sha256, created, duration_s, recogniser.model_name, build_version()
    )
    written = readable(wanted.listen.figures, wanted.listen.punctuate)
    return web.json_response(deepgram_file.document(finals, channels, wanted, facts, written))


async def transcriptions(request: web.Request) -> web.StreamResponse:
    """POST /v1/audio/transcriptions; errors in OpenAI's shape."""
    try:
        return await _transcriptions(request)
    except ServiceError as error:
        status = error.code.http_status
        headers = {}
        if error.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
        return web.json_response(openai.error_body(error, status), status=status, headers=headers)


async def _transcriptions(request: web.Request) -> web.StreamResponse:
    state = request.app[STATE]
    async with scratch() as folder:
        with charged(state, key_of(request)) as account:
            form = await receive_form(request, folder, most_bytes(state))
            wanted = openai.parse_fields(form.fields)
            if form.file is None:
                raise openai.FieldError("file", "The form has no field `file`.", "Send the sound there.")
            recogniser = state.models.pick(wanted.model)
            nursery = state.listening.nursery
            settings = replace(base_settings(state), hotwords=wanted.hotwords)
            samples = decoded(form.file.path, Sound(), 1, nursery)
            async with contextlib.aclosing(heard(recogniser, settings, samples)) as events:
                if wanted.stream:
                    return await _streamed(request, events, account)
                finals, duration_s = await _all_of(request, events, account)
    content_type, body = openai.transcription(finals, duration_s, wanted)
    return web.Response(text=body, content_type=content_type, charset="utf-8")


async def _all_of(
    request: web.Request, events: AsyncIterator[Event], account: Account
) -> tuple[list[Final], float]:
    """Every final, and how long the recording was."""
    finals, duration_s = [], 0.0
    async for event in events:
        account.reached(event)
        _stop_if_gone(request)
        if isinstance(event, Final):
            finals.append(event)
        elif isinstance(event, Closed):
            duration_s = event.audio_s
    return finals, duration_s


async def _streamed(
    request: web.Request, events: AsyncIterator[Event], account: Account
) -> web.StreamResponse:
    """Text as it is decided, as server-sent events. The answer begins with the first of it, so that sound
    which cannot be decoded is still refused with a status of its own."""
    answer = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    answer.content_type = "text/event-stream"
    answer.charset = "utf-8"
    try:
        try:
            await _write_finals(request, answer, events, account)
        except ServiceError as error:
            if not answer.prepared or error.code == ErrorCode.GONE:
                raise
            await answer.write(openai.error_event(error))
        await answer.write_eof()
    except ConnectionError:
        raise _gone() from None
    return answer


async def _write_finals(
    request: web.Request, answer: web.StreamResponse, events: AsyncIterator[Event], account: Account
) -> None:
    finals: list[Final] = []
    async for event in events:
        account.reached(event)
        _stop_if_gone(request)
        if isinstance(event, Final) and event.text:
            if not answer.prepared:
                await answer.prepare(request)
            await answer.write(openai.delta_event((" " if finals else "") + event.text))
            finals.append(event)
    if not answer.prepared:
        await answer.prepare(request)
    await answer.write(openai.done_event(finals))


def base_settings(state: State) -> StreamSettings:
    """How every whole file is heard: behind live streams, without partials."""
    return StreamSettings(
        interim=False,
        priority="batch",
        declared_file=True,
        progress_every_s=PROGRESS_S,
        endpointing_ms=state.settings.endpointing_ms,
        max_utterance_s=state.settings.max_utterance_s,
        decoder=state.settings.decoder,
    )


def most_bytes(state: State) -> int:
    """The largest file that one request may bring."""
    return state.settings.max_upload_mb * 1024 * 1024


async def model(request: web.Request) -> web.Response:
    """GET /v1/models/{name}, as OpenAI's clients ask."""
    state = request.app[STATE]
    name = request.match_info["name"]
    if name not in state.models.names:
        error = ServiceError(
            ErrorCode.MODEL,
            f"There is no model {name[:80]!r} here.",
            f"Served: {', '.join(state.models.names)}.",
        )
        return web.json_response(openai.error_body(error, 404), status=404)
    return web.json_response(openai.model_entry(name, 0))


class Account:
    """How much sound one request has used; each piece is counted when it has been heard."""

    def __init__(self, state: State, key: Key) -> None:
        self._state, self._key = state, key
        self._heard_s = 0.0

    def reached(self, event: Event) -> None:
        """What this event says more than those before it is charged."""
        more_s = reached_s(event) - self._heard_s
        if more_s > 0:
            self._heard_s += more_s
            self._state.keys.heard(self._key, more_s)


@contextlib.contextmanager
def charged(state: State, key: Key) -> Iterator[Account]:
    """One of the key's streams while the block lasts."""
    if state.draining:
        raise ServiceError(
            ErrorCode.DRAINING, "The server is being stopped.", "Try again soon.", retry_after_s=5.0
        )
    state.keys.take(key)
    try:
        yield Account(state, key)
    finally:
        state.keys.release(key)


def _stop_if_gone(request: web.Request) -> None:
    """Nobody waits any more: stop hearing. Raised through `heard`, it cancels the stream."""
    if request.transport is None or request.transport.is_closing():
        raise _gone()


def _gone() -> ServiceError:
    return ServiceError(ErrorCode.GONE, "The client went away.")
