"""One connection of one session: reads what the client says, writes what is heard, and ends exactly once.

Knows no wire: the dialect reads and writes. Back-pressure: while the stream takes no sound, nothing is read.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from dataclasses import replace

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from service.audio.rate_watch import RateWatch
from service.audio.resample import RATE, Samples
from service.core.events import Closed, Event, Failed
from service.dialects.commands import (
    Audio,
    Command,
    Finalize,
    Finish,
    KeepAlive,
    Mark,
    Refuse,
    Reply,
    Say,
    Warn,
)
from service.errors import ServiceError
from service.http.sessions import Session
from service.http.state import State
from service.logs import say
from service.metrics import Metrics

# What a stream's failure is on the wire: our code -> close code, the code that clients know, advice.
WIRE_CODES = {
    "idle": (1011, "NET-0001", "Send sound, or KeepAlive every 3 to 5 s."),
    "audio": (1008, "DATA-0000", ""),
    "poisoned": (1008, "DATA-0000", ""),
    "DATA-0000": (1008, "DATA-0000", ""),
    "DATA-0001": (1008, "DATA-0001", ""),
    "KEY-0000": (1008, "KEY-0000", ""),
    "SLOW-0000": (1008, "SLOW-0000", ""),
    "slow_reader": (1008, "SLOW-0000", ""),
    "marks": (1008, "MARK-0000", ""),
    "SIZE-0000": (1009, "SIZE-0000", ""),
    "request": (1008, "DATA-0001", ""),
    "containers": (1013, "BUSY", ""),
    "draining": (1012, "DRAINING", ""),
}
LEAVING = (WSCloseCode.OK, WSCloseCode.GOING_AWAY)
HANDED_OVER = 4000
CATCH_UP = 1.25
"""Live sound is read so many times as fast as it is spoken, at the most: a client that sends again what a lost session
had not answered is back in time a little later."""
CLOSE_S = 2.0
SETTLE_S = 1.0
"""A dialect that answers each message waits no longer than this for what can be heard of it."""


def cut_off(socket: web.WebSocketResponse) -> None:
    """End the connection without waiting for anybody."""
    transport = socket._req.transport if socket._req is not None else None
    if transport is not None:
        transport.abort()


def count_closed(metrics: Metrics, dialect: str, code: int) -> None:
    """A websocket ended with this code. A client may close with any: those that mean nothing here count as one."""
    known = 1000 <= code <= 1015 or code == HANDED_OVER
    metrics.sockets_closed.labels(dialect, str(code) if known else "other").inc()


def outcome(task: "asyncio.Task[str]") -> str:
    """What a reader or a writer ended with; nothing ("gone") from one that is still at work."""
    if not task.done() or task.cancelled():
        return "gone"
    return task.result() if task.exception() is None else "failed"


class Conversation:
    """Runs one connection to its end."""

    def __init__(
        self, state: State, session: Session, socket: web.WebSocketResponse, resumed: bool = False
    ) -> None:
        self.state = state
        self.session = session
        self.socket = socket
        self.resumed = resumed
        self._failure: tuple[int, str, str] | None = None
        self._handed_over = False
        self._cut_off = False
        """The client took nothing for too long."""
        self._code = 0
        """With which code this side closed, if it was the first."""
        self._over = asyncio.Event()
        self.busy = False
        """At work on what the client said: its silence is ours."""
        rate = session.decoder.sample_rate if session.decoder.frame_bytes else None
        live = rate is not None and not session.request.source_is_file
        self._watch = RateWatch(rate) if live and rate is not None else None
        name = session.dialect.name
        self._messages_in = state.metrics.messages_received.labels(name)
        self._messages_out = state.metrics.messages_sent.labels(name)

    async def run(self, after: int = 0, first: tuple[Command, ...] = ()) -> None:
        """Read and write until one side ends it."""
        session = self.session
        session.conversation = self
        writer = asyncio.create_task(self._write(after))
        reader = asyncio.create_task(self._read(first))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if outcome(reader) == "refused":
                await asyncio.wait({writer})  # it says why
            elif writer.done() and outcome(writer) == "gone":
                await asyncio.wait({reader})  # it sees the same, and says what becomes of the session
        finally:
            await self._settle(reader, writer)

    async def hand_over(self) -> None:
        """The session goes on elsewhere: end this connection between two messages, and wait for that."""
        self._handed_over = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self.socket.close(code=HANDED_OVER, message=b"RESUMED on another connection")
        cut_off(self.socket)
        try:
            async with asyncio.timeout(self.state.settings.send_timeout_s):
                await self._over.wait()
        except TimeoutError:
            raise ServiceError(
                "busy", "The session's old connection is still at work.", "Try again.", retry_after_s=1.0
            ) from None

    async def _settle(self, reader: "asyncio.Task[str]", writer: "asyncio.Task[str]") -> None:
        """Whatever happened: the stream is over or parked, and everybody knows."""
        session = self.session
        try:
            how = outcome(writer)
            how = outcome(reader) if how == "gone" else how
            how = "slow" if self._cut_off else how
            # What still runs is at work for nobody: the socket is over, or the server is.
            reader.cancel()
            writer.cancel()
            for ended in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(ended, Exception):
                    self._log(ended)
            can_return = session.request.extensions and self.state.settings.resume_timeout_s > 0
            if how == "gone" and can_return and not self.state.draining:
                self.state.listening.park(session)
            else:
                if how != "told":
                    session.stream.cancel("left" if how == "left" else "lost")
                self.state.listening.forget(session)
            if not self.socket.closed and how != "left":
                await self._close(*(self._failure or (1011, "INTERNAL", "the connection failed here")))
            code = self._code or self.socket.close_code or 1006
            count_closed(self.state.metrics, session.dialect.name, code)
            say(logging.INFO, "connection ended", session=session.id, how=how, code=code)
        finally:
            self._over.set()

    # ---- from the client

    async def _read(self, first: tuple[Command, ...]) -> str:
        """Obey until the client leaves ("left"), vanishes ("gone"), or cannot be understood ("refused")."""
        session, settings = self.session, self.state.settings
        try:
            self.busy = True
            for command in first:
                await self._obey(command)
            self.busy = False
            while not self._handed_over:
                message = await self.socket.receive()
                if message.type is WSMsgType.BINARY or message.type is WSMsgType.TEXT:
                    self._messages_in.inc()
                    if len(message.data) > settings.max_message_bytes:
                        raise ServiceError(
                            "SIZE-0000",
                            f"a message of {len(message.data)} bytes is over {settings.max_message_bytes}.",
                            "Cut it: how sound is cut changes nothing.",
                        )
                    commands = session.dialect.receive(message.data)
                    self._count(message)
                    self.busy = True
                    for command in commands:
                        await self._obey(command)
                    self.busy = False
                elif message.type is WSMsgType.PING:
                    await self._taken(self.socket.pong(message.data))
                    session.stream.keep_alive()
                elif message.type is WSMsgType.CLOSE:
                    return "left" if message.data in LEAVING else "gone"
                elif message.type in (WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                    return "gone"
        except ServiceError as error:
            if error.code == "closed":
                return "refused"  # the stream ended meanwhile; what it says last is being written
            session.stream.fail(error.code, error.message, error.advice)
            return "refused"
        except TimeoutError:
            return "slow"
        except ConnectionError:
            return "gone"  # while it was being answered
        except Exception as error:
            self._log(error)
            session.stream.fail("internal", "Something went wrong here; it is logged.")
            return "refused"
        return "gone"

    def _log(self, error: Exception) -> None:
        facts = {"session": self.session.id}
        logging.getLogger("silica").error("connection failed", exc_info=error, extra={"facts": facts})

    def _count(self, message: WSMessage) -> None:
        """What a resuming client need not send again."""
        session = self.session
        if message.type is WSMsgType.BINARY:
            session.received_bytes += len(message.data)
            session.digest.update(message.data)
            self.state.metrics.audio_received_bytes.inc(len(message.data))

    async def _obey(self, command: Command) -> None:
        session, stream = self.session, self.session.stream
        if isinstance(command, Finalize | Mark | Finish):
            session.received_commands += 1
        if isinstance(command, Audio):
            if not session.finishing:
                await self._pace()
                async for sound in session.decoder.push(command.data):
                    await self._hear(sound)
        elif isinstance(command, KeepAlive):
            stream.keep_alive()
        elif isinstance(command, Say):
            await self._send(command.text)
        elif isinstance(command, Reply):
            await stream.settled(SETTLE_S)
            answer = None if session.finishing else session.dialect.reply()
            if answer is not None:
                await self._send(answer)
        elif isinstance(command, Warn):
            stream.keep_alive()
            self._warn(command)
        elif isinstance(command, Refuse):
            raise ServiceError(command.code, command.message, command.advice)
        elif session.finishing:
            return
        elif isinstance(command, Finalize):
            await stream.finalize()
        elif isinstance(command, Mark):
            await stream.mark(command.name)
        elif isinstance(command, Finish):
            session.finishing = True
            async for sound in session.decoder.finish():
                await self._hear(sound)
            await stream.finish()

    async def _hear(self, sound: Samples) -> None:
        """Sound into the stream, counted against the key."""
        session, keys = self.session, self.state.keys
        await session.stream.push(sound)
        keys.heard(session.key, sound.shape[1] / RATE)
        if not keys.alive(session.key, self.state.clock()):
            raise ServiceError("KEY-0000", "the API key was revoked.", "Ask for a new one.")
        try:
            keys.check_minutes(session.key)
        except ServiceError as error:
            raise ServiceError("KEY-0000", error.message, error.advice) from None

    async def _pace(self) -> None:
        """Wait while live sound is too far ahead of real time; notice a rate that does not fit."""
        session, settings = self.session, self.state.settings
        if session.request.source_is_file:
            return
        if self._watch is not None:
            looks = self._watch.heard(self.state.clock(), session.stream.received_samples)
            if looks is not None:
                self._warn(
                    Warn(
                        "rate",
                        f"sound arrives as if it were {looks} Hz, not the declared {self._watch.declared} Hz.",
                        "Check sample_rate (and channels); if the sound comes from a file, say source=file.",
                    )
                )
        while True:
            spent_s = self.state.clock() - session.began_s
            ahead_s = session.stream.received_samples / RATE - CATCH_UP * spent_s - settings.max_audio_lead_s
            if ahead_s <= 0 or self._handed_over:
                return
            wait_s = min(ahead_s / CATCH_UP, 1.0)
            self.state.metrics.throttled_s.inc(wait_s)
            session.stream.keep_alive()
            await asyncio.sleep(wait_s)

    def _warn(self, warning: Warn) -> None:
        if self.session.dialect.warn(warning):
            self.state.metrics.warnings.labels(warning.code).inc()
            say(logging.INFO, "warned", session=self.session.id, kind=warning.code)

    # ---- to the client

    async def _write(self, after: int) -> str:
        """Tell every event to the end ("told"): the last one closes the socket. Or the client vanishes ("gone")."""
        session = self.session
        try:
            if self.resumed:
                for text in session.dialect.resumed(session.received):
                    await self._send(text)
            async for number, event in session.stream.numbered(after):
                for text in session.dialect.write(number, self._on_the_wire(event), session.received):
                    await self._send(text)
                if isinstance(event, Closed):
                    await self._end(number, event)
        except TimeoutError:
            return "slow"
        except ConnectionError:
            return "gone"
        return "told"

    def _on_the_wire(self, event: Event) -> Event:
        """Failures get the codes and the advice that this wire's clients know."""
        if not isinstance(event, Failed):
            return event
        code, name, advice = WIRE_CODES.get(event.code, (1011, "INTERNAL", "Reconnect; it is logged here."))
        self._failure = (code, name, event.message)
        return replace(event, code=name, advice=event.advice or advice)

    async def _end(self, number: int, event: Closed) -> None:
        """The last words, and the close that fits."""
        session = self.session
        digest = session.digest.hexdigest()
        for text in session.dialect.last_words(number, event, digest, session.finishing):
            await self._send(text)
        if event.reason == "drained" and not session.finishing:
            await self._close(1012, "DRAINING", "the server is being stopped")
        elif self._failure is not None:
            await self._close(*self._failure)
        elif event.reason in ("finished", "drained"):
            await self._close(1000, "", "")
        else:
            await self._close(1011, "INTERNAL", event.reason)

    async def _send(self, text: str) -> None:
        """One message."""
        await self._taken(self.socket.send_str(text))
        self._messages_out.inc()

    async def _taken(self, sending: Awaitable[None]) -> None:
        """TimeoutError when the client takes nothing for too long: then it is cut off.

        At once, since reader and writer wait for room together: one that gives up spoils it for the other.
        """
        try:
            async with asyncio.timeout(self.state.settings.send_timeout_s):
                await sending
        except TimeoutError:
            self._cut_off = True
            self._failure = (
                1008,
                "SLOW-0000",
                f"nothing was taken for {self.state.settings.send_timeout_s:g} s",
            )
            self.session.stream.cancel("slow_reader")
            cut_off(self.socket)
            raise

    async def _close(self, code: int, name: str, reason: str) -> None:
        self._code = self._code or code
        told = f"{name}: {reason}" if name else ""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self.socket.close(code=code, message=told.encode()[:120])
