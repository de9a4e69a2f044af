"""Whole files over HTTP: POST /v1/listen (Deepgram, pre-recorded) and POST /v1/audio/transcriptions (OpenAI).

Bodies go to disk, are decoded in confined processes and heard behind the live streams. The wire formats lie
in service/protocols/deepgram_file.py and openai.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from aiohttp import web

from service.auth.keys import Key
from service.errors import ErrorCode, ServiceError
from service.http.app_state import APP_STATE, AppState
from service.http.auth import key_of
from service.http.headers import REQUEST_ID
from service.http.uploads import receive_body, receive_form, temporary_folder
from service.jobs.recordings import AudioFormat, audio_end_s, channels_of, decode_file, transcribe
from service.metrics import build_version
from service.output.formatting import formatter
from service.protocols import deepgram_file, openai
from service.recognizer import StreamSettings
from service.session.events import Closed, Event, Final

PROGRESS_S = 5.0


def add_transcription_routes(app: web.Application) -> None:
    """The routes of whole files."""
    app.router.add_post("/v1/listen", listen)
    app.router.add_post("/v1/audio/transcriptions", transcriptions)
    app.router.add_get("/v1/models/{name}", model)


async def listen(request: web.Request) -> web.Response:
    """POST /v1/listen: the body is the file, the query says the rest."""
    state = request.app[APP_STATE]
    wanted = deepgram_file.read_file_query(request.query.items())
    deepgram_file.refuse_url(request.headers.get("Content-Type", ""))
    created = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    recognizer = state.models.pick(wanted.listen.model)
    async with temporary_folder() as folder:
        with metered(state, key_of(request)) as meter:
            upload = await receive_body(request, folder, max_upload_bytes(state))
            sound = AudioFormat(
                wanted.listen.encoding,
                wanted.listen.sample_rate,
                wanted.listen.channels if wanted.channels_given else None,
                wanted.listen.multichannel,
            )
            audio_decoders = state.client_streams.audio_decoders
            channels = await channels_of(upload.path, sound, audio_decoders)
            endpointing = wanted.listen.endpointing_ms
            settings = replace(
                base_settings(state),
                channels=channels,
                hotwords=wanted.listen.hotwords,
                n_best=wanted.listen.alternatives,
            )
            if endpointing != -1:
                settings = replace(settings, endpointing_ms=endpointing)
            samples = decode_file(upload.path, sound, channels, audio_decoders)
            async with contextlib.aclosing(transcribe(recognizer, settings, samples)) as events:
                finals, duration_s = await _collect(request, events, meter)
    facts = deepgram_file.FileFacts(
        request[REQUEST_ID], upload.sha256, created, duration_s, recognizer.model_name, build_version()
    )
    written = formatter(wanted.listen.figures, wanted.listen.punctuate)
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
    state = request.app[APP_STATE]
    async with temporary_folder() as folder:
        with metered(state, key_of(request)) as meter:
            form = await receive_form(request, folder, max_upload_bytes(state))
            wanted = openai.parse_fields(form.fields)
            if form.file is None:
                raise openai.FieldError("file", "The form has no field `file`.", "Send the sound there.")
            recognizer = state.models.pick(wanted.model)
            audio_decoders = state.client_streams.audio_decoders
            settings = replace(base_settings(state), hotwords=wanted.hotwords)
            samples = decode_file(form.file.path, AudioFormat(), 1, audio_decoders)
            async with contextlib.aclosing(transcribe(recognizer, settings, samples)) as events:
                if wanted.stream:
                    return await _streamed(request, events, meter)
                finals, duration_s = await _collect(request, events, meter)
    content_type, body = openai.transcription(finals, duration_s, wanted)
    return web.Response(text=body, content_type=content_type, charset="utf-8")


async def _collect(
    request: web.Request, events: AsyncIterator[Event], meter: UsageMeter
) -> tuple[list[Final], float]:
    """Every final, and how long the recording was."""
    finals, duration_s = [], 0.0
    async for event in events:
        meter.add(event)
        _stop_if_gone(request)
        if isinstance(event, Final):
            finals.append(event)
        elif isinstance(event, Closed):
            duration_s = event.audio_s
    return finals, duration_s


async def _streamed(
    request: web.Request, events: AsyncIterator[Event], meter: UsageMeter
) -> web.StreamResponse:
    """Text as it is decided, as server-sent events. The answer begins with the first of it, so that sound
    which cannot be decoded is still refused with a status of its own."""
    answer = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    answer.content_type = "text/event-stream"
    answer.charset = "utf-8"
    try:
        try:
            await _write_finals(request, answer, events, meter)
        except ServiceError as error:
            if not answer.prepared or error.code == ErrorCode.GONE:
                raise
            await answer.write(openai.error_event(error))
        await answer.write_eof()
    except ConnectionError:
        raise _gone() from None
    return answer


async def _write_finals(
    request: web.Request, answer: web.StreamResponse, events: AsyncIterator[Event], meter: UsageMeter
) -> None:
    finals: list[Final] = []
    async for event in events:
        meter.add(event)
        _stop_if_gone(request)
        if isinstance(event, Final) and event.text:
            if not answer.prepared:
                await answer.prepare(request)
            await answer.write(openai.delta_event((" " if finals else "") + event.text))
            finals.append(event)
    if not answer.prepared:
        await answer.prepare(request)
    await answer.write(openai.done_event(finals))


def base_settings(state: AppState) -> StreamSettings:
    """How every whole file is heard: behind live streams, without partials."""
    return StreamSettings(
        interim=False,
        priority="batch",
        faster_than_realtime=True,
        progress_interval_s=PROGRESS_S,
        endpointing_ms=state.settings.endpointing_ms,
        max_utterance_s=state.settings.max_utterance_s,
        decoder=state.settings.decoder,
    )


def max_upload_bytes(state: AppState) -> int:
    """The largest file that one request may bring."""
    return state.settings.max_upload_mb * 1024 * 1024


async def model(request: web.Request) -> web.Response:
    """GET /v1/models/{name}, as OpenAI's clients ask."""
    state = request.app[APP_STATE]
    name = request.match_info["name"]
    if name not in state.models.names:
        error = ServiceError(
            ErrorCode.MODEL,
            f"There is no model {name[:80]!r} here.",
            f"Served: {', '.join(state.models.names)}.",
        )
        return web.json_response(openai.error_body(error, 404), status=404)
    return web.json_response(openai.model_entry(name, 0))


class UsageMeter:
    """How much sound one request has used; each piece is counted when it has been heard."""

    def __init__(self, state: AppState, key: Key) -> None:
        self._state, self._key = state, key
        self._charged_s = 0.0

    def add(self, event: Event) -> None:
        """What this event says more than those before it is charged."""
        more_s = audio_end_s(event) - self._charged_s
        if more_s > 0:
            self._charged_s += more_s
            self._state.keys.add_usage(self._key, more_s)


@contextlib.contextmanager
def metered(state: AppState, key: Key) -> Iterator[UsageMeter]:
    """One of the key's streams while the block lasts."""
    if state.draining:
        raise ServiceError(
            ErrorCode.DRAINING, "The server is being stopped.", "Try again soon.", retry_after_s=5.0
        )
    state.keys.acquire_stream(key)
    try:
        yield UsageMeter(state, key)
    finally:
        state.keys.release_stream(key)


def _stop_if_gone(request: web.Request) -> None:
    """Nobody waits any more: stop hearing. Raised through `transcribe`, it cancels the stream."""
    if request.transport is None or request.transport.is_closing():
        raise _gone()


def _gone() -> ServiceError:
    return ServiceError(ErrorCode.GONE, "The client went away.")
