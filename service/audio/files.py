"""A user's own sound file, in any format PyAV reads, as float32 at 16 kHz: whole, or block by block.

The file is named by the user who runs this process. Strangers' bytes are decoded in `container_child` instead.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import av
import av.error
import numpy as np

from acoustic.constants import SAMPLE_RATE
from service.audio.resample import Resampler, Samples
from service.errors import ErrorCode, ServiceError

MAX_LENGTH_S = 24 * 3600.0
BLOCK_S = 10.0
MAX_CHANNELS = 16
# Formats without a mark in their first bytes: only the name tells.
BY_SUFFIX = {".g722": "g722", ".sln16": "s16le"}
RAW_SUFFIXES = (".raw", ".pcm", ".sln", ".ulaw", ".alaw", ".gsm")


def read_file(path: str | Path, max_length_s: float = MAX_LENGTH_S) -> Samples:
    """The whole file as [channels, samples]."""
    blocks = list(read_blocks(path, max_length_s))
    return np.concatenate(blocks, axis=1)


def read_mono(path: str | Path, max_length_s: float = MAX_LENGTH_S) -> Samples:
    """The whole file as one channel: the mean of its channels."""
    return np.concatenate([block.mean(axis=0) for block in read_blocks(path, max_length_s)])


class AudioFile:
    """One channel of a file, the mean of its channels, block by block: read anew by everyone who goes through it."""

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or str(path)
        """What it is called where something is wrong with it."""
        self.duration_s = 0.0
        """How much has been read by whoever reads it now, or read it last."""

    def __iter__(self) -> Iterator[Samples]:
        self.duration_s = 0.0
        for block in read_blocks(self.path, name=self.name):
            self.duration_s += block.shape[1] / SAMPLE_RATE
            yield block.mean(axis=0)


@contextlib.contextmanager
def seekable_file(file: str) -> Iterator[AudioFile]:
    """A file that can be read more than once: itself, or what comes over a pipe or the standard input (`-`) as one."""
    if file != "-":
        _check(Path(file), file)
        if Path(file).is_file():
            yield AudioFile(file)
            return
    with contextlib.ExitStack() as open_files:
        source = sys.stdin.buffer if file == "-" else open_files.enter_context(Path(file).open("rb"))
        kept = open_files.enter_context(tempfile.NamedTemporaryFile(prefix="silica-"))
        shutil.copyfileobj(source, kept)
        kept.flush()
        yield AudioFile(kept.name, "standard input" if file == "-" else file)


def declared_length_s(path: Path) -> float | None:
    """How long the file says it is; None where it does not say, or not in a way that can be read."""
    try:
        with path.open("rb") as opened, av.open(opened, mode="r", metadata_errors="ignore") as container:
            return container.duration / av.time_base if container.duration else None
    except (OSError, av.error.FFmpegError, ValueError):
        return None


def read_blocks(
    path: str | Path, max_length_s: float = MAX_LENGTH_S, name: str | None = None
) -> Iterator[Samples]:
    """The file as blocks [channels, about ten seconds]; at least one. A truncated file ends where its sound does."""
    file, name = Path(path), name or str(path)
    _check(file, name)
    with file.open("rb") as opened:
        yield from _limit_length(
            name, read_stream(opened, name, BY_SUFFIX.get(file.suffix.lower())), max_length_s
        )


def read_stream(source: BinaryIO, name: str, form: str | None = None) -> Iterator[Samples]:
    """The same from an open file; `form` names its format where its bytes do not tell."""
    try:
        # Given as a file object, libav cannot be led to other files or addresses by what is written in it.
        with av.open(source, mode="r", format=form, metadata_errors="ignore") as container:
            if not container.streams.audio:
                raise ServiceError(
                    ErrorCode.AUDIO_FILE,
                    f"{name} holds no sound.",
                    "It holds video or data only: choose another file.",
                )
            yield from _blocks(container, name)
    except (av.error.FFmpegError, ValueError) as error:
        raise ServiceError(
            ErrorCode.AUDIO_FILE,
            f"{name} is not readable as sound ({_reason(error)}).",
            "Expected a sound file such as WAV, FLAC, MP3, Ogg, WebM or MP4; its name alone does not make it one.",
        ) from error


def _blocks(container: Any, name: str) -> Iterator[Samples]:
    to_float = av.AudioResampler(format="fltp")
    resampler: Resampler | None = None
    pending: list[Samples] = []
    yielded = False
    for sound, rate in _frames(container, to_float):
        if resampler is None:
            resampler = Resampler(rate, min(len(sound), MAX_CHANNELS))
        if rate != resampler.rate or len(sound) < resampler.channels:
            raise ServiceError(
                ErrorCode.AUDIO_FILE,
                f"{name} changes its format in the middle (from {resampler.rate} Hz, {resampler.channels} channels "
                f"to {rate} Hz, {len(sound)} channels).",
                "Convert it to one format first.",
            )
        if not np.isfinite(sound).all():
            raise ServiceError(
                ErrorCode.AUDIO_FILE,
                f"{name} holds samples that are not numbers (NaN or infinite).",
                "The program that wrote it went wrong: write it again, or convert it to 16-bit.",
            )
        pending.append(resampler.push(sound[: resampler.channels]))
        if sum(block.shape[1] for block in pending) >= BLOCK_S * SAMPLE_RATE:
            yielded = True
            yield np.concatenate(pending, axis=1)
            pending = []
    if resampler is not None:
        pending.append(resampler.finish())
    rest = np.concatenate(pending, axis=1) if pending else np.zeros((1, 0), np.float32)
    if not rest.shape[1] and not yielded:
        raise ServiceError(
            ErrorCode.AUDIO_FILE,
            f"{name} holds not a single sample of sound.",
            "The recording is empty or was cut off at its start.",
        )
    if rest.shape[1]:
        yield rest


def _frames(container: Any, to_float: Any) -> Iterator[tuple[Samples, int]]:
    """Float frames [channels, n] with their rate; stops where a truncated or damaged file does."""
    decoded = container.decode(audio=0)
    decoded_any = False
    while True:
        try:
            frame = next(decoded, None)
        except av.error.FFmpegError:
            if decoded_any:
                return
            raise
        if frame is None:
            return
        for piece in to_float.resample(frame):
            decoded_any = True
            yield np.asarray(piece.to_ndarray(), np.float32), int(piece.sample_rate)


def _limit_length(name: str, blocks: Iterator[Samples], max_length_s: float) -> Iterator[Samples]:
    seconds = 0.0
    for block in blocks:
        seconds += block.shape[1] / SAMPLE_RATE
        if seconds > max_length_s:
            raise ServiceError(
                ErrorCode.AUDIO_FILE,
                f"{name} is longer than {max_length_s:.0f} s.",
                "Cut it into shorter files first.",
            )
        yield block


def _check(file: Path, name: str) -> None:
    problem = None
    if not file.exists():
        problem = ("does not exist.", "Check the name and the folder.")
    elif file.is_dir():
        problem = ("is a folder, not a sound file.", "Name the files in it.")
    elif file.is_file() and file.stat().st_size == 0:
        problem = ("is empty (0 bytes).", "The recording or the copy failed: make it again.")
    elif file.suffix.lower() in RAW_SUFFIXES:
        advice = "Give it a header first, for example: ffmpeg -f s16le -ar 16000 -ac 1 -i IN.raw OUT.wav"
        problem = ("is raw sound: it does not say its rate and format.", advice)
    elif file.is_file() and not os.access(file, os.R_OK):
        problem = ("may not be read by this user.", "Ask its owner, or change its permissions (chmod).")
    if problem:
        raise ServiceError(ErrorCode.AUDIO_FILE, f"{name} {problem[0]}", problem[1])


def _reason(error: Exception) -> str:
    if isinstance(error, av.error.FFmpegError):
        return str(error.strerror or error)
    return str(error)
