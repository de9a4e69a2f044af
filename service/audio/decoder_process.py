"""The confined process in which containers are decoded: a stream's bytes or a file in, float32 at 16 kHz out.

Run as a module it is the root process: it imports PyAV once and forks one child a stream or file. A child holds its
socket, and for a file a read-only descriptor of it. It can open nothing else, so it has no network and no other file;
memory and processor time are limited. Untrusted containers are decoded here and nowhere else.
"""

import io
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import av
import av.container
import av.error
import numpy as np

from service.audio.resample import Resampler, Samples

HEAD = struct.Struct("<BI")
BYTES, BARRIER, END = 1, 2, 3
HELLO, AUDIO, BARRIER_REACHED, DONE, FAILED, FORMAT, UNREADABLE = 10, 11, 12, 13, 14, 15, 16

FORMATS = {
    "ogg": "ogg",
    "webm": "matroska",
    "flac": "flac",
    "mp3": "mp3",
    "wav": "wav",
    "mp4": "mov",
}
CODECS = ("opus", "vorbis", "flac", "mp3", "mp3float", "aac", "alac", "pcm_")
SEEKABLE = ("mp4",)
"""May have their index at the end. A file of any other container is read as a stream and gives the same samples."""
NOT_STREAMABLE = (
    b"it is damaged, or its index (moov) follows its audio: upload it as a file, "
    b"or put the index first with `ffmpeg -i IN.m4a -c copy -movflags +faststart OUT.m4a`"
)
MAX_FRAME_BYTES = 8 * 1024 * 1024
MAX_DAMAGED_PACKETS = 100
"""Packets in a row; after that it is no sound any more."""


class Source(Protocol):
    """What libav reads from. It also seeks where there are `seek` and `tell`."""

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""


class SocketFile:
    """The socket as libav's file and as the way out. Barriers are answered when libav wants more."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._ready = memoryview(b"")
        self._ended = False

    def read(self, size: int) -> bytes:
        """What is there, up to size; waits for more only when nothing is. Empty: the sound is at its end."""
        while not self._ready and not self._ended:
            kind, length = HEAD.unpack(self._exactly(HEAD.size))
            if kind == BYTES and length <= MAX_FRAME_BYTES:
                self._ready = memoryview(self._exactly(length))
            elif kind == BARRIER:
                # libav asks for more, so everything before the barrier has been used and its sound was sent.
                self.send(BARRIER_REACHED)
            else:
                self._ended = True
        part = self._ready[:size]
        self._ready = self._ready[size:]
        return bytes(part)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """One message to the server."""
        self.sock.sendall(HEAD.pack(kind, len(payload)) + payload)

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.sock.recv(size - len(parts))
            if not part:
                os._exit(0)  # the server has let go of this stream
            parts += part
        return bytes(parts)


class File:
    """A file as libav's source. Every read tells the server that the child makes progress, also without output."""

    def __init__(self, descriptor: int, socket_file: SocketFile, seekable: bool) -> None:
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115 (open until the process ends)
        self._wire = socket_file
        if seekable:
            self.seek, self.tell = self._file.seek, self._file.tell

    def read(self, size: int) -> bytes:
        """As of a file. A disk that fails is no fault of the audio, so the server gets the error number."""
        self._wire.send(BARRIER_REACHED)
        try:
            return self._file.read(size)
        except OSError as error:
            self._wire.send(UNREADABLE, str(error.errno).encode())
            os._exit(0)


def limit_process(memory_bytes: int, cpu_s: int) -> None:
    """From here on: no new descriptor of any kind, bounded memory and time, no new privileges."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # not even in the place of one that is closed


def decode(socket_file: SocketFile, source: Source, form: str, channels: int, mix: bool) -> None:
    """Send all audio of the container, as it is decoded."""
    container = av.open(
        source,
        mode="r",
        format=FORMATS[form],
        metadata_errors="ignore",
        options={"probesize": "32768", "analyzeduration": "0"},
    )
    if not container.streams.audio:
        raise ValueError("there is no sound in it")
    stream = container.streams.audio[0]
    if not stream.codec_context.name.startswith(CODECS):
        raise ValueError(f"its codec {stream.codec_context.name!r} is not among those decoded here")
    stream.codec_context.thread_type = "NONE"
    resampler: Resampler | None = None
    wanted = 1 if mix else channels
    for frame in frames(container.demux(stream)):
        sound = to_float(frame)
        if resampler is None or resampler.rate != frame.sample_rate:
            if resampler is not None:
                socket_file.send(AUDIO, resampler.finish().T.tobytes())
            resampler = Resampler(frame.sample_rate, wanted)
            info = {"rate": frame.sample_rate, "channels": len(sound), "codec": stream.codec_context.name}
            socket_file.send(FORMAT, json.dumps(info).encode())
        resampled = resampler.push(with_channels(sound, wanted, mix))
        if resampled.shape[1]:
            socket_file.send(AUDIO, resampled.T.tobytes())
    if resampler is None:
        raise ValueError("it ended before any sound")
    socket_file.send(AUDIO, resampler.finish().T.tobytes())


def frames(packets: Iterator[Any]) -> Iterator[Any]:
    """What is decoded. Damaged packets are passed over, and a container that breaks off ends there, as in files.py."""
    damaged, decoded_any = 0, False
    while True:
        try:
            packet = next(packets, None)
        except av.error.InvalidDataError:
            if not decoded_any:
                raise
            return
        if packet is None:
            return
        try:
            decoded = packet.decode()
        except av.error.InvalidDataError:
            damaged += 1
            if damaged > MAX_DAMAGED_PACKETS:
                raise
            continue
        if decoded:
            damaged, decoded_any = 0, True
        yield from decoded


def to_float(frame: Any) -> Samples:
    """A decoded frame as [channels, n] between -1 and 1."""
    array = np.asarray(frame.to_ndarray())
    if not frame.format.is_planar:
        array = array.reshape(-1, frame.layout.nb_channels).T
    sound: Samples = array.astype(np.float32)
    if array.dtype == np.uint8:
        sound = (sound - np.float32(128)) / np.float32(128)
    elif array.dtype.kind == "i":
        sound /= np.float32(2 ** (8 * array.dtype.itemsize - 1))
    return np.nan_to_num(sound)


def with_channels(sound: Samples, wanted: int, mix: bool) -> Samples:
    """As many channels as wanted: mixed to one, cut, or filled with silence."""
    if mix:
        mixed: Samples = sound.mean(axis=0, keepdims=True, dtype=np.float32)
        return mixed
    if len(sound) < wanted:
        return np.concatenate([sound, np.zeros((wanted - len(sound), sound.shape[1]), np.float32)])
    return sound[:wanted]


def run_child(socket_file: SocketFile, source: Source, request: dict[str, Any]) -> None:
    """The child of one stream or file, start to end. Never returns."""
    try:
        socket_file.send(HELLO, str(os.getpid()).encode())
        decode(socket_file, source, request["form"], request["channels"], request["mix"])
        socket_file.send(DONE)
    except (BrokenPipeError, ConnectionError):
        pass
    except MemoryError:
        socket_file.send(FAILED, b"it needs more memory than one stream may use")
    except av.error.InvalidDataError as error:
        streamed = source is socket_file and request["form"] in SEEKABLE
        socket_file.send(FAILED, NOT_STREAMABLE if streamed else str(error.strerror).encode())
    except (av.error.FFmpegError, ValueError, EOFError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        socket_file.send(FAILED, (reason or type(error).__name__).encode()[:500])
    finally:
        os._exit(0)


def preload() -> None:
    """Do everything once that would otherwise be loaded lazily in a child that may open nothing."""
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as target:
        stream = target.add_stream("pcm_s16le", rate=48000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 48000
        target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    file.seek(0)
    with av.open(file, format="wav") as source:
        assert isinstance(source, av.container.InputContainer)
        for frame in source.decode(audio=0):
            Resampler(48000, 1).push(with_channels(to_float(frame), 1, True))
    try:
        av.open(io.BytesIO(b"nothing"), format="ogg")
    except av.error.FFmpegError as error:
        str(error)


def main() -> None:
    """Wait for orders on the descriptor that the command line names. Each becomes a child.

    An order brings the child's socket, and the file if it is to decode one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    av.logging.set_level(None)
    preload()
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 2)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            control.detach()
            # The kernel numbers received descriptors in rising order from 3 on, so no copy overwrites the next.
            for place, descriptor in enumerate(descriptors, start=3):
                os.dup2(descriptor, place)
            os.closerange(3 + len(descriptors), 4096)
            request = json.loads(message)
            socket_file = SocketFile(socket.socket(fileno=3))
            source = (
                File(4, socket_file, request["form"] in SEEKABLE) if len(descriptors) > 1 else socket_file
            )
            limit_process(request["memory_mb"] * 1024 * 1024, request["cpu_s"])
            run_child(socket_file, source, request)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
