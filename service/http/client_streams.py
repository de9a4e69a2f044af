"""The sessions of this process: what belongs to each stream besides itself, and which may be resumed.

A session outlives its connection when its client can resume. Every session is let go of exactly once.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from service.audio.decoder import AudioDecoder
from service.audio.decoder_pool import AudioDecoderPool, SandboxLimits
from service.auth.keys import Key
from service.errors import ErrorCode, ServiceError
from service.metrics import Metrics
from service.protocols.commands import ListenRequest
from service.protocols.wire_protocol import Received, WireProtocol
from service.recognizer import Recognizer, Stream
from service.scheduling.shared_counters import SharedCounters
from service.settings import Settings


class Connection(Protocol):
    """The client's side of a session: what the sessions ask of whoever reads and writes its socket."""

    @property
    def busy(self) -> bool:
        """At work on a message of the client, which therefore need not send another."""

    async def hand_over(self) -> None:
        """End this connection between two messages: the session goes on with another."""


@dataclass(eq=False)
class ClientStream:
    """One stream with its sound decoder, its wire, its key, and what has arrived of it."""

    stream: Stream
    recognizer: Recognizer
    request: ListenRequest
    protocol: WireProtocol
    decoder: AudioDecoder
    key: Key
    began_s: float
    release: Callable[[], None]
    received_bytes: int = 0
    received_commands: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    finishing: bool = False
    connection: Connection | None = None

    @property
    def id(self) -> str:
        """The stream's id, which is also the request id of its messages."""
        return self.stream.id

    @property
    def received(self) -> Received:
        """What has arrived, to be acknowledged."""
        frame = self.decoder.frame_bytes
        samples = None if frame is None else self.received_bytes // frame
        return Received(self.received_bytes, samples, self.received_commands)


class ClientStreams:
    """Every session by its id."""

    def __init__(self, settings: Settings, metrics: Metrics, counters: SharedCounters) -> None:
        self.settings = settings
        self.metrics = metrics
        self.counters = counters
        self._sockets = 0
        self.audio_decoders = AudioDecoderPool(
            settings.max_audio_decoders,
            SandboxLimits(
                settings.audio_decoder_memory_mb,
                settings.audio_decoder_cpu_s,
                settings.audio_decoder_timeout_s,
            ),
            self._count_children,
            lambda reason: metrics.audio_decoder_failures.labels(reason).inc(),
        )
        self._sessions: dict[str, ClientStream] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        """Sessions, the parked ones included."""
        return len(self._sessions)

    def start(self) -> None:
        """Begin to vouch, now and then, for clients who are silent because we are not done with what they said."""
        for session in self._sessions.values():
            busy = session.connection is not None and session.connection.busy
            if busy or session.finishing:
                session.stream.keep_alive()
        self._idle_refresh = asyncio.get_running_loop().call_later(
            self.settings.idle_timeout_s / 4, self.start
        )

    def socket_opened(self, protocol: str) -> None:
        """One more open socket; ServiceError "sockets" when there are too many. Undone by `socket_closed`."""
        if self.counters.total("sockets") >= self.settings.max_connections:
            raise ServiceError(
                ErrorCode.SOCKETS, "Too many sockets are open here.", "Try again soon.", retry_after_s=5.0
            )
        self._sockets += 1
        self.counters.add("sockets", 1)
        self._idle.clear()
        self.metrics.sockets_open.labels(protocol).inc()

    def socket_closed(self, protocol: str) -> None:
        """One less."""
        self._sockets -= 1
        self.counters.add("sockets", -1)
        self.metrics.sockets_open.labels(protocol).dec()
        if self._sockets == 0:
            self._idle.set()

    def _count_children(self, change: int) -> int:
        if change:
            self.counters.add("audio_decoders", change)
            self.metrics.audio_decoder_processes.inc(change)
        return round(self.counters.total("audio_decoders"))

    def add(self, session: ClientStream) -> None:
        """A session begins."""
        self._sessions[session.id] = session

    def park(self, session: ClientStream) -> None:
        """Its client vanished; it may come back within `resume_timeout_s`."""
        session.connection = None
        session.recognizer.park(session.stream)
        # The recognizer ends the stream by itself; this only lets go of what belongs to it here.
        loop = asyncio.get_running_loop()
        self._timers[session.id] = loop.call_later(self.settings.resume_timeout_s + 0.2, self.forget, session)

    async def resume(self, id: str, key: Key, after: int) -> ClientStream:
        """The session again, for the same key; ServiceError "resume" when it is gone."""
        session = self._sessions.get(id)
        if session is None or session.key.id != key.id or not session.request.extensions:
            raise ServiceError(
                ErrorCode.RESUME,
                "There is no session to resume by this id.",
                "It ended, or was gone too long: begin a new one.",
            )
        if session.connection is not None:
            # The old connection is dead and does not know it yet. It ends between two messages.
            await session.connection.hand_over()
        timer = self._timers.pop(id, None)
        if timer is not None:
            timer.cancel()
        try:
            session.recognizer.resume(id, session.stream.settings.owner, after)
        except ServiceError:
            self.forget(session)
            raise
        return session

    def forget(self, session: ClientStream) -> None:
        """The session is over: everything that belonged to it is let go, once."""
        timer = self._timers.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        if self._sessions.pop(session.id, None) is not None:
            session.decoder.close()
            session.release()

    async def wait_delivered(self, limit_s: float) -> None:
        """Wait until no socket is open any more, at most so long."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Let go of everything that is left."""
        self._idle_refresh.cancel()
        for session in tuple(self._sessions.values()):
            session.stream.cancel("stopped")
            self.forget(session)
