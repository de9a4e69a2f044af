"""One recording through the recognizer: a stored file decoded in a stream, pushed, its finals told.

Memory does not grow with the file: it is read as fast as the recognizer takes its audio. No HTTP here; the
codecs of strangers run in the confined child processes of service/audio/decoder_pool.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from acoustic.constants import SAMPLE_RATE
from acoustic.errors import AcousticError
from lm.errors import LanguageError
from lm.search.hotwords import Hotword
from lm.text.normalize import normalize
from service.audio.decoder import AudioDecoder
from service.audio.decoder_pool import SNIFF_BYTES, AudioDecoderPool, detect_container
from service.audio.resample import Samples
from service.errors import ErrorCode, ServiceError
from service.recognizer import Recognizer, Stream, StreamSettings
from service.session.events import Closed, Event, Failed, Final, Progress

PUSH_S = 10.0
"""Longer stretches are pushed in parts, so that cancelling takes effect soon."""


@dataclass(frozen=True)
class AudioFormat:
    """How the bytes of a file are to be read."""

    encoding: str | None = None
    sample_rate: int | None = None
    channels: int | None = None
    """None: as many as the container has."""
    multichannel: bool = False


@dataclass
class ReadProgress:
    """How far a file has been read, for those who show progress."""

    bytes: int = 0
    samples: int = 0


def container_of(path: Path) -> str | None:
    """The container that the file is, or None for raw sound; ServiceError "audio" for an empty file."""
    with path.open("rb") as file:
        start = file.read(SNIFF_BYTES)
    if not start:
        raise ServiceError(
            ErrorCode.AUDIO, "The file is empty.", "Send the sound as the body, or as the field `file`."
        )
    return detect_container(start)


async def channels_of(path: Path, sound: AudioFormat, audio_decoders: AudioDecoderPool) -> int:
    """How many channels will be heard."""
    container_format = container_of(path)
    if not sound.multichannel:
        return 1
    if sound.channels is not None:
        return sound.channels
    if container_format is None:
        return 1
    with path.open("rb") as file:
        decoder = audio_decoders.open(container_format, 1, True, file)
    try:
        async with contextlib.aclosing(decoder.finish()) as samples:
            await anext(samples, None)  # the format comes before the first samples
    except ServiceError as error:
        raise _audio_error(error) from None
    finally:
        decoder.close()
    return max(1, min(8, int(str((decoder.format or {}).get("channels", 1)))))


async def decode_file(
    path: Path,
    sound: AudioFormat,
    channels: int,
    audio_decoders: AudioDecoderPool,
    read: ReadProgress | None = None,
) -> AsyncIterator[Samples]:
    """The file as samples [channels, n] at 16 kHz, piece by piece."""
    read = read if read is not None else ReadProgress()
    container_of(path)  # an empty file is refused
    decoder = AudioDecoder(
        sound.encoding,
        sound.sample_rate,
        channels if sound.multichannel else sound.channels or 1,
        not sound.multichannel,
        audio_decoders,
        lambda *_: None,
    )
    try:
        with path.open("rb") as file:
            async for samples in decoder.read(file):
                read.bytes = file.tell()
                read.samples += samples.shape[1]
                yield samples
    except ServiceError as error:
        raise _audio_error(error) from None
    finally:
        decoder.close()


async def transcribe(
    recognizer: Recognizer, settings: StreamSettings, sound: AsyncIterator[Samples]
) -> AsyncGenerator[Event, None]:
    """Every event of this recording. Leaving early cancels the stream; sound that fails raises what was wrong with it.

    ServiceError "draining" when the recognizer was stopped before the recording was over: it has to be heard again.
    """
    stream = open_stream(recognizer, settings)
    failure: list[Exception] = []

    async def push() -> None:
        step = round(PUSH_S * SAMPLE_RATE)
        try:
            async for samples in sound:
                for start in range(0, samples.shape[1], step):
                    await stream.push(samples[:, start : start + step])
            await stream.finish()
        except Exception as error:  # whatever it is, who reads the events must not wait for ever
            if isinstance(error, ServiceError) and error.code == ErrorCode.CLOSED:
                return  # the stream ended before its sound did: its last events say why
            failure.append(_storage_error(error) if isinstance(error, OSError) else error)
            stream.cancel("failed")

    pushing = asyncio.create_task(push())
    closed = False
    try:
        async for event in stream.events():
            if isinstance(event, Failed):
                failure.append(ServiceError(event.code, event.message, event.advice))
            if isinstance(event, Closed):
                closed = True
                if event.reason != "finished" and not failure:
                    failure.append(_draining_error())
            if not failure:
                yield event
    finally:
        pushing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pushing
        if not closed:
            stream.cancel("cancelled")
        await _close(sound)
    if failure:
        raise failure[0]


def audio_end_s(event: Event) -> float:
    """How much of the recording has been heard when this is told; 0 for what does not say."""
    match event:
        case Final():
            return event.end_s
        case Progress():
            return event.processed_s
        case Closed():
            return event.audio_s
    return 0.0


def open_stream(recognizer: Recognizer, settings: StreamSettings) -> Stream:
    """A stream whose hotwords are spelled as the models spell; ServiceError "request" when that cannot be."""
    hotwords = tuple(
        Hotword(phrase, hotword.weight)
        for hotword in settings.hotwords
        if (phrase := normalize(hotword.phrase))
    )
    try:
        return recognizer.open(replace(settings, hotwords=hotwords))
    except (LanguageError, AcousticError) as error:
        raise ServiceError(ErrorCode.REQUEST, str(error)) from None


async def _close(sound: AsyncIterator[Samples]) -> None:
    close = getattr(sound, "aclose", None)
    if close is not None:
        await close()


def _storage_error(error: OSError) -> ServiceError:
    return ServiceError(
        ErrorCode.STORAGE,
        f"The recording cannot be read: {error.strerror or error}.",
        "Try later.",
        retry_after_s=5.0,
    )


def _draining_error() -> ServiceError:
    return ServiceError(
        ErrorCode.DRAINING,
        "The server is being stopped: not all was heard.",
        "Try again soon.",
        retry_after_s=5.0,
    )


def _audio_error(error: ServiceError) -> ServiceError:
    """Undecodable sound, with a message that stands alone: on a websocket it follows its code."""
    if error.code is not ErrorCode.AUDIO:
        return error
    return ServiceError(error.code, error.message[:1].upper() + error.message[1:], error.advice)
