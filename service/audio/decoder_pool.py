"""The server's side of the confined decoders: recognizes containers, hands out children, bounds and ends them.

The decoding itself happens in container_child.py, in another process.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from service.audio.resample import Samples
from service.errors import ErrorCode, ServiceError

# The same numbers as in container_child.py, which is not imported here: it would bring PyAV into the server.
BYTES, BARRIER, END = 1, 2, 3
HELLO, AUDIO, BARRIER_REACHED, DONE, FAILED, FORMAT, UNREADABLE = 10, 11, 12, 13, 14, 15, 16
HEAD_BYTES = 5
CHUNK_BYTES = 65536
SNIFF_BYTES = 12

BY_ENCODING = {
    "flac": "flac",
    "mp3": "mp3",
    "wav": "wav",
    "ogg": "ogg",
    "ogg-opus": "ogg",
    "webm": "webm",
    "mp4": "mp4",
}


def detect_container(start: bytes) -> str | None:
    """The container that begins with these bytes (twelve are enough), or None."""
    if start.startswith(b"OggS"):
        return "ogg"
    if start.startswith(b"\x1a\x45\xdf\xa3"):
        return "webm"
    if start.startswith(b"fLaC"):
        return "flac"
    if start[:4] in (b"RIFF", b"RF64") and start[8:12] == b"WAVE":
        return "wav"
    if start[4:8] == b"ftyp":
        return "mp4"
    if start.startswith(b"ID3") or (len(start) > 2 and _mp3_frame(start)):
        return "mp3"
    return None


def _mp3_frame(start: bytes) -> bool:
    """An MPEG audio frame's header: sync, layer III, and neither rate nor bit rate of the forbidden values."""
    if start[0] != 0xFF or start[1] & 0xE6 != 0xE2 or start[1] & 0x18 == 0x08:
        return False
    return start[2] & 0xF0 not in (0, 0xF0) and start[2] & 0x0C != 0x0C


@dataclass(frozen=True)
class SandboxLimits:
    """What one child may use."""

    memory_mb: int = 512
    cpu_s: int = 600
    timeout_s: float = 10.0


CountChildren = Callable[[int], int]
"""Told of a change, answers how many there are now."""


def _own_count() -> CountChildren:
    children = 0

    def count(change: int) -> int:
        nonlocal children
        children += change
        return children

    return count


class AudioDecoderPool:
    """Keeps the root process from which children are forked, and counts them."""

    def __init__(
        self,
        max_children: int = 64,
        limits: SandboxLimits = SandboxLimits(),
        count: CountChildren | None = None,
        on_failure: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.max_children = max_children
        self.on_failure = on_failure
        """Told why a child failed: its sound was undecodable, it stalled, or it crashed."""
        self.limits = limits
        self._count = count or _own_count()
        self._root: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def children(self) -> int:
        """Children now."""
        return self._count(0)

    def child_ended(self) -> None:
        """One child less."""
        self._count(-1)

    def check_free(self) -> None:
        """ServiceError "containers" when no more children may be."""
        if self.children >= self.max_children:  # of every process that serves here
            raise ServiceError(
                ErrorCode.CONTAINERS,
                f"All {self.max_children} decoders for compressed sound are in use.",
                "Try again soon, or send raw sound (encoding=linear16).",
                retry_after_s=5.0,
            )

    def start(self) -> None:
        """Start the root; it is of use at once, and fast when it has warmed up."""
        if self._root is not None and self._root.poll() is None:
            return
        self._forget()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._root = subprocess.Popen(
                [sys.executable, "-m", "service.audio.decoder_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours

    def open(self, form: str, channels: int, mix: bool, file: BinaryIO | None = None) -> "ContainerDecoder":
        """A child for one stream; or for a file, which the child reads itself: then only `finish` is called."""
        self.check_free()
        self.start()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        request = {
            "form": form,
            "channels": channels,
            "mix": mix,
            "memory_mb": self.limits.memory_mb,
            "cpu_s": self.limits.cpu_s,
        }
        with theirs:
            assert self._control is not None
            descriptors = [theirs.fileno(), *([file.fileno()] if file is not None else [])]
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            except OSError:
                ours.close()
                raise ServiceError(
                    ErrorCode.CONTAINERS,
                    "The decoder for compressed sound is restarting.",
                    "Try again.",
                    retry_after_s=2.0,
                ) from None
        self._count(1)
        return ContainerDecoder(ours, 1 if mix else channels, self)

    def stop(self) -> None:
        """End the root. Children end with their streams."""
        root = self._root
        self._forget()
        if root is not None:
            root.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                root.wait(5.0)

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = self._root = None


class ContainerDecoder:
    """One stream's child. `push` tells all the sound that its bytes gave, and then returns: order is kept."""

    def __init__(self, sock: socket.socket, channels: int, audio_decoders: AudioDecoderPool) -> None:
        self.channels = channels
        self.format: dict[str, object] | None = None
        """Rate, channels and codec, once the container has told."""
        self._sock = sock
        self._audio_decoders = audio_decoders
        self._buffer = bytearray()
        self._pid: int | None = None
        self._open = True
        self._done = False

    async def push(self, data: bytes) -> AsyncIterator[Samples]:
        """Sound [channels, n] in pieces; ServiceError "audio" when it cannot be decoded."""
        for start in range(0, len(data), CHUNK_BYTES):
            if self._done:
                return  # the container said that it ends, and more came: passed over, as every player does
            chunk = data[start : start + CHUNK_BYTES]
            message = bytes([BYTES]) + len(chunk).to_bytes(4, "little") + chunk
            async for sound in self._exchange(message + bytes([BARRIER, 0, 0, 0, 0]), BARRIER_REACHED):
                yield sound

    async def finish(self) -> AsyncGenerator[Samples, None]:
        """The last audio of a stream, or all audio of a file (OSError when it cannot be read); the child ends."""
        if not self._done:
            async for sound in self._exchange(bytes([END, 0, 0, 0, 0]), DONE):
                yield sound
        self.close()

    def close(self) -> None:
        """End the child, whatever it is doing."""
        if self._open:
            self._open = False
            self._sock.close()
            self._audio_decoders.child_ended()
            if self._pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)

    async def _exchange(self, message: bytes, until: int) -> AsyncIterator[Samples]:
        """Send, and read until the closing answer; both at once: the child may have to talk before it listens."""
        loop = asyncio.get_running_loop()
        try:
            sent = self._sock.send(message)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(message)  # the child is gone; what it said last tells why
        sending = loop.create_task(self._rest(message[sent:])) if sent < len(message) else None
        try:
            while True:
                kind, payload = await self._message()
                if kind == AUDIO:
                    yield np.frombuffer(payload, np.float32).reshape(-1, self.channels).T
                elif kind == HELLO:
                    self._pid = int(payload)
                elif kind == FORMAT:
                    self.format = json.loads(payload)
                elif kind == UNREADABLE:
                    self._pid = None
                    raise OSError(int(payload), os.strerror(int(payload)))
                elif kind == FAILED:
                    self._pid = None
                    self._audio_decoders.on_failure("undecodable")
                    raise _undecodable(payload.decode(errors="replace"))
                elif kind == DONE:
                    self._done, self._pid = True, None
                    return
                elif kind == until:
                    return
        except BaseException:
            self.close()
            raise
        finally:
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending

    async def _rest(self, message: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, message)

    async def _message(self) -> tuple[int, bytes]:
        while True:
            if len(self._buffer) >= HEAD_BYTES:
                length = int.from_bytes(self._buffer[1:HEAD_BYTES], "little")
                if len(self._buffer) >= HEAD_BYTES + length:
                    kind = self._buffer[0]
                    payload = bytes(self._buffer[HEAD_BYTES : HEAD_BYTES + length])
                    del self._buffer[: HEAD_BYTES + length]
                    return kind, payload
            timeout_s = self._audio_decoders.limits.timeout_s
            try:
                async with asyncio.timeout(timeout_s):
                    part = await asyncio.get_running_loop().sock_recv(self._sock, 262144)
            except TimeoutError:
                self._audio_decoders.on_failure("stalled")
                raise _undecodable(f"its decoder gave no answer for {timeout_s:g} s") from None
            except ConnectionError:
                part = b""
            if not part:
                self._pid = None
                self._audio_decoders.on_failure("crashed")
                raise _undecodable("its decoder was ended: it crashed or used more than one stream may")
            self._buffer += part


def _undecodable(reason: str) -> ServiceError:
    return ServiceError(
        ErrorCode.AUDIO,
        f"the sound cannot be decoded: {reason}.",
        "Accepted are Ogg and WebM (Opus, Vorbis), FLAC, MP3, WAV, MP4 (AAC); raw sound needs `encoding`.",
    )
