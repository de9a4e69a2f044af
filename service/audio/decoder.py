"""One stream's sound, whatever it is: raw or in a container, declared rightly or not. Bytes in, 16 kHz out.

The first twelve bytes decide: a container that was declared as raw sound is noticed and read as what it is.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import BinaryIO

from acoustic.constants import SAMPLE_RATE
from service.audio.decoder_pool import BY_ENCODING, AudioDecoderPool, ContainerDecoder, detect_container
from service.audio.pcm import MAX_PLAUSIBLE_LEVEL, WIDTHS, PcmDecoder
from service.audio.resample import Samples
from service.errors import ErrorCode, ServiceError

WarnCallback = Callable[[str, str, str], None]
"""Told a code, a message, advice."""

SNIFF_BYTES = 12
CHUNK_BYTES = 65536
G711_RATE = 8000


def open_decoder(
    encoding: str | None,
    sample_rate: int | None = None,
    channels: int = 1,
    *,
    mix: bool = False,
    audio_decoders: AudioDecoderPool | None = None,
    warn: WarnCallback | None = None,
) -> "AudioDecoder":
    """A decoder for one stream. `encoding` None: recognized. Without a nursery, raw sound only."""
    return AudioDecoder(encoding, sample_rate, channels, mix, audio_decoders, warn or (lambda *_: None))


class AudioDecoder:
    """Pushes give sound [channels, n], float32, 16 kHz, in pieces; how the bytes were cut changes none of it."""

    def __init__(
        self,
        encoding: str | None,
        sample_rate: int | None,
        channels: int,
        mix: bool,
        audio_decoders: AudioDecoderPool | None,
        warn: WarnCallback,
    ) -> None:
        self.encoding = encoding
        self.sample_rate = sample_rate or (G711_RATE if encoding in ("mulaw", "alaw") else SAMPLE_RATE)
        self.declared_rate = sample_rate
        self.channels = channels
        self.mix = mix
        self._audio_decoders = audio_decoders
        self._warn = warn
        self._start = b""
        self._inner: PcmDecoder | ContainerDecoder | None = None
        self._format_checked = False

    @property
    def frame_bytes(self) -> int | None:
        """Bytes of one sample of all channels, of raw sound."""
        if isinstance(self._inner, ContainerDecoder) or self.encoding not in WIDTHS:
            return self._inner.frame_bytes if isinstance(self._inner, PcmDecoder) else None
        return WIDTHS[self.encoding] * self.channels

    async def push(self, data: bytes) -> AsyncIterator[Samples]:
        """The sound that these bytes complete; ServiceError "audio" when it cannot be decoded."""
        if self._inner is None:
            self._start += data
            if len(self._start) < SNIFF_BYTES:
                return
            data, self._start = self._start, b""
            self._inner = self._choose(data)
        async for sound in self._decode(data):
            yield sound

    async def read(self, file: BinaryIO) -> AsyncIterator[Samples]:
        """All sound of a file, instead of `push` and `finish`. `file.tell()` says how far it has been read.

        A container's child gets the file itself and can seek in it: an MP4 file may have its index at the end.
        """
        self._inner = self._choose(os.pread(file.fileno(), SNIFF_BYTES, 0), file)
        if isinstance(self._inner, PcmDecoder):
            while piece := await asyncio.to_thread(file.read, CHUNK_BYTES):
                async for sound in self._decode(piece):
                    yield sound
        async for sound in self.finish():
            yield sound

    async def flush(self) -> AsyncIterator[Samples]:
        """Raw sound that is still inside: the first bytes, the resampler's tail. More may be pushed afterwards."""
        if self._inner is None and self._start:
            start, self._start = self._start, b""
            self._inner = self._choose(start)
            async for sound in self._decode(start):
                yield sound
        if isinstance(self._inner, PcmDecoder):
            tail = self._inner.finish()
            if tail.shape[1]:
                yield tail

    async def finish(self) -> AsyncIterator[Samples]:
        """What is still inside. Nothing may be pushed afterwards."""
        async for sound in self.flush():
            yield sound
        inner = self._inner
        if isinstance(inner, ContainerDecoder):
            async for sound in inner.finish():
                yield sound
            self._check_format(inner)
        elif isinstance(inner, PcmDecoder) and inner.odd_bytes:
            self._warn(
                "odd_bytes",
                f"the sound ended {inner.odd_bytes} bytes into a sample of {inner.frame_bytes}.",
                f"Is it really {inner.encoding} with {inner.channels} channels?",
            )

    def close(self) -> None:
        """Let go of everything at once."""
        if isinstance(self._inner, ContainerDecoder):
            self._inner.close()

    async def _decode(self, data: bytes) -> AsyncIterator[Samples]:
        inner = self._inner
        if isinstance(inner, ContainerDecoder):
            async for sound in inner.push(data):
                yield sound
            self._check_format(inner)
        elif isinstance(inner, PcmDecoder):
            # In pieces, so that a minute in one message does not hold up everybody else's loop.
            for begin in range(0, len(data), CHUNK_BYTES):
                sound = inner.push(data[begin : begin + CHUNK_BYTES])
                if sound.shape[1]:
                    yield sound
            if inner.peak_level > MAX_PLAUSIBLE_LEVEL:
                self._warn(
                    "level", "the float sound goes far beyond 1.", "linear32 is float between -1 and 1."
                )

    def _choose(self, start: bytes, file: BinaryIO | None = None) -> PcmDecoder | ContainerDecoder:
        found = detect_container(start)
        if self.encoding in WIDTHS:
            # An MP3 frame's two bytes are common in raw sound; the other marks are four bytes or more.
            if found in ("ogg", "webm", "flac", "wav") and self._audio_decoders is not None:
                self._warn(
                    "header",
                    f"declared {self.encoding}, but it begins as a {found} container and is read as one.",
                    "Leave out `encoding` and `sample_rate` for containers.",
                )
                return self._container(found, file)
            return PcmDecoder(self.encoding, self.sample_rate, self.channels, mix=self.mix)
        declared = BY_ENCODING.get(self.encoding or "")
        form = found or declared
        if form is None and self.encoding is None and self.declared_rate is not None:
            self._warn(
                "no_encoding",
                f"no encoding was declared; taken for linear16 at {self.declared_rate} Hz.",
                "Say encoding=linear16.",
            )
            self.encoding = "linear16"
            return PcmDecoder("linear16", self.sample_rate, self.channels, mix=self.mix)
        if form is None or (self.encoding == "opus" and found not in ("ogg", "webm")):
            raise ServiceError(
                ErrorCode.AUDIO,
                "the sound begins as no container that is known here."
                if self.encoding is None
                else f"declared {self.encoding}, but no such container begins like this.",
                "Is it a sound file (WAV, FLAC, MP3, Ogg, WebM, MP4), and whole? "
                "Raw sound needs encoding=linear16&sample_rate=16000, or what it is.",
            )
        if found is not None and declared is not None and found != declared:
            self._warn("header", f"declared {self.encoding}, but it is a {found} container; read as one.", "")
        return self._container(form, file)

    def _container(self, form: str, file: BinaryIO | None) -> ContainerDecoder:
        if self._audio_decoders is None:
            raise ServiceError(ErrorCode.AUDIO, "containers are not decoded here.", "Send raw sound.")
        return self._audio_decoders.open(form, self.channels, self.mix, file)

    def _check_format(self, inner: ContainerDecoder) -> None:
        """Once the container has told what it holds, say where the client declared something else."""
        if self._format_checked or inner.format is None:
            return
        self._format_checked = True
        rate, channels = inner.format["rate"], inner.format["channels"]
        if self.declared_rate is not None and rate != self.declared_rate:
            message = f"declared {self.declared_rate} Hz, but the container holds {rate} Hz, which is used."
            self._warn("rate", message, "Leave out `sample_rate` for containers.")
        if not self.mix and channels != self.channels:
            message = f"declared {self.channels} channels, but the container holds {channels}."
            self._warn("channels", message, "Further ones are left out, missing ones are silent.")
