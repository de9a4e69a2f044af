"""A worker process and the pipe to it: start, send, hear back, notice its death or silence, start another.

Parent side: everything on the event loop, nothing blocks on a worker. Child side: `serve_messages`, a plain loop.
Messages are pickles between one parent and its own children; nothing from outside is ever unpickled.
"""

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

HEADER = struct.Struct("<I")
MAX_MESSAGE_SIZE = 64 * 1024 * 1024
START_TIMEOUT_S = 600.0
"""So long a worker may take to be ready: the first on a machine compiles the search, on a crowded core for minutes."""
OVERLOADED_ADVICE = "Is the machine overloaded? What was compiled is kept: the next start is quicker."
PRELOAD = [
    "acoustic.runtime",
    "lm.language_model",
    "service.scheduling.engine_worker",
    "service.scheduling.decode_worker",
]
"""PyTorch and numba among it, once for all workers. The process that serves loads neither."""

context = multiprocessing.get_context("forkserver")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A worker's first and last message when it cannot work: the sentence for the user."""

    message: str


class MessageReader:
    """Bytes from a pipe, back into the messages that were framed."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Every message that is now whole; ValueError for one that is longer than any of ours."""
        self._buffer += data
        whole, at = [], 0
        while len(self._buffer) - at >= HEADER.size:
            (size,) = HEADER.unpack_from(self._buffer, at)
            if size > MAX_MESSAGE_SIZE:
                raise ValueError(f"a message of {size} bytes")
            end = at + HEADER.size + size
            if len(self._buffer) < end:
                break
            whole.append(pickle.loads(memoryview(self._buffer)[at + HEADER.size : end].tobytes()))
            at = end
        del self._buffer[:at]
        return whole


class WorkerProcess(asyncio.Protocol):
    """One life of a worker. A dead one is not revived: its owner starts another."""

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        on_message: Callable[["WorkerProcess", Any], None],
        on_lost: Callable[["WorkerProcess"], None],
    ) -> None:
        self._target, self._arguments = target, arguments
        self._on_message, self._on_lost = on_message, on_lost
        self._frames = MessageReader()
        self._transport: asyncio.Transport | None = None
        self._process: BaseProcess | None = None
        self._closed = False

    async def start(self) -> None:
        """Start the process and connect to it. It is ready when its first message says so."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        process = context.Process(target=self._target, args=(theirs, *self._arguments), daemon=True)
        # Asking the fork server takes a moment (and the first time, an import of everything).
        starting = loop.run_in_executor(None, start_in_fork_server, process)
        try:
            await asyncio.shield(starting)
        except BaseException:
            # A thread cannot be called back: what it starts is ended once it is there.
            await asyncio.wait([starting])
            ours.close()
            if not starting.exception():
                process.kill()
                await loop.run_in_executor(None, process.join, 5.0)
            raise
        finally:
            theirs.close()
        self._process = process
        await loop.create_connection(lambda: self, sock=ours)

    @property
    def pid(self) -> int | None:
        """The process number, for whoever wants to look at it or end it."""
        return self._process.pid if self._process else None

    def send(self, message: Any) -> None:
        """Send without waiting; a worker that is gone loses it (its owner is told by `on_lost`)."""
        if self._transport is not None and not self._closed:
            self._transport.write(encode_message(message))

    def kill(self) -> None:
        """End it now, whatever it is doing. `on_lost` follows unless `close` came first."""
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.kill()

    async def close(self) -> None:
        """End it and wait until it is gone; nobody is told."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
        self.kill()
        if self._process is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._process.join, 5.0)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, so nothing may be asserted here.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except ValueError:
            self.kill()
            return
        for message in messages:
            if not self._closed:
                self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed:
            self._closed = True
            self.kill()
            if self._process is not None:
                # Reap it without waiting on it here.
                asyncio.get_running_loop().run_in_executor(None, self._process.join, 5.0)
            self._on_lost(self)


def start_fork_server() -> None:
    """Start the fork server, which imports once what every worker needs: seconds, beside our own imports."""
    context.set_forkserver_preload(PRELOAD)
    # Ctrl-C reaches the whole group of processes. Only the server answers it, not an import half done.
    resource_tracker.ensure_running()  # first: it unblocks the signal on its way
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_in_fork_server(process: BaseProcess) -> None:
    """Start it with everything that workers import loaded already."""
    start_fork_server()
    process.start()


async def gather_or_cancel(*starts: Coroutine[Any, Any, T]) -> list[T]:
    """All at once; when one fails the others are cancelled and waited for, and its exception is raised."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def encode_message(message: Any) -> bytes:
    """A message with its length in front."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def serve_messages(
    channel: socket.socket, handle: Callable[[Any], Any], idle_work: Callable[[], Any] = lambda: None
) -> None:
    """The child's life: each message is handled and answered, until the parent is gone.

    `idle_work` does a little of what can wait and answers None once there is none left: it is asked while no message
    waits, and once after each, so that neither starves the other.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    channel.setblocking(True)
    with channel, contextlib.suppress(ConnectionError, EOFError):
        while True:
            if (done := idle_work()) is not None:
                if done:
                    channel.sendall(encode_message(done))
                if not select.select([channel], [], [], 0)[0]:
                    continue
            (size,) = HEADER.unpack(_exactly(channel, HEADER.size))
            answer = handle(pickle.loads(_exactly(channel, size)))
            if answer is not None:
                channel.sendall(encode_message(answer))


def send_message(channel: socket.socket, message: Any) -> None:
    """Say something before `serve_messages`. A parent that is gone meanwhile is no error: `serve_messages` then ends
    at once.
    """
    with contextlib.suppress(ConnectionError):
        channel.sendall(encode_message(message))


def limit_to_one_thread() -> None:
    """A worker uses one core: there are as many workers as cores."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(1 << 20, size - len(parts)))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
