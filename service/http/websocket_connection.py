"""One connection of one session: reads what the client says, writes what is heard, and ends exactly once.

Knows no wire: the dialect reads and writes. Back-pressure: while the stream takes no sound, nothing is read.
"""

import asyncio
import logging
from collections.abc import Sequence

from acoustic.constants import SAMPLE_RATE
from service.audio.rate_monitor import RateMonitor
from service.audio.resample import Samples
from service.errors import ErrorCode, ServiceError
from service.http.app_state import AppState
from service.http.client_socket import ClientSocket
from service.http.client_streams import ClientStream
from service.logs import log_event
from service.protocols.commands import (
    Audio,
    Command,
    Finalize,
    Finish,
    Flush,
    KeepAlive,
    PlaceMarker,
    Reject,
    Reply,
    SendText,
    Warn,
)
from service.session.events import Closed, Failed

CATCH_UP = 1.25
"""Live sound is read so many times as fast as it is spoken, at the most: a client that sends again what a lost session
had not answered is back in time a little later."""
SETTLE_S = 1.0
"""A dialect that answers each message waits no longer than this for what can be heard of it."""


def task_outcome(task: "asyncio.Task[str]") -> str:
    """What a reader or a writer ended with; nothing ("gone") from one that is still at work."""
    if not task.done() or task.cancelled():
        return "gone"
    return task.result() if task.exception() is None else "failed"


class WebSocketConnection:
    """Runs one connection to its end."""

    def __init__(
        self, state: AppState, session: ClientStream, client: ClientSocket, resumed: bool = False
    ) -> None:
        self.state = state
        self.session = session
        self.client = client
        self.resumed = resumed
        self._failure: tuple[ErrorCode, str] | None = None
        self._handed_over = False
        self._ended = asyncio.Event()
        self.busy = False
        """At work on what the client said: its silence is ours."""
        rate = session.decoder.sample_rate if session.decoder.frame_bytes else None
        live = rate is not None and not session.request.source_is_file
        self._watch = RateMonitor(rate) if live and rate is not None else None

    async def run(self, after: int = 0, first: Sequence[Command] = ()) -> None:
        """Read and write until one side ends it."""
        session = self.session
        session.connection = self
        writer = asyncio.create_task(self._write(after))
        reader = asyncio.create_task(self._read(first))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if task_outcome(reader) == "refused":
                await asyncio.wait({writer})  # it says why
            elif writer.done() and task_outcome(writer) == "gone":
                await asyncio.wait({reader})  # it sees the same, and says what becomes of the session
        finally:
            await self._settle(reader, writer)

    async def hand_over(self) -> None:
        """The session goes on elsewhere: end this connection between two messages, and wait for that."""
        self._handed_over = True
        await self.client.hand_over()
        try:
            async with asyncio.timeout(self.state.settings.send_timeout_s):
                await self._ended.wait()
        except TimeoutError:
            raise ServiceError(
                ErrorCode.BUSY,
                "The session's old connection is still at work.",
                "Try again.",
                retry_after_s=1.0,
            ) from None

    async def _settle(self, reader: "asyncio.Task[str]", writer: "asyncio.Task[str]") -> None:
        """Whatever happened: the stream is over or parked, and everybody knows."""
        session = self.session
        try:
            how = task_outcome(writer)
            how = task_outcome(reader) if how == "gone" else how
            how = "slow" if self.client.too_slow else how
            # What still runs is at work for nobody: the socket is over, or the server is.
            reader.cancel()
            writer.cancel()
            for ended in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(ended, Exception):
                    self._log(ended)
            can_return = session.request.extensions and self.state.settings.resume_timeout_s > 0
            if how == "gone" and can_return and not self.state.draining:
                self.state.client_streams.park(session)
            else:
                if how != "told":
                    session.stream.cancel({"left": "left", "slow": "slow_reader"}.get(how, "lost"))
                self.state.client_streams.forget(session)
            if how == "slow":
                await self.client.close(ErrorCode.SLOW_READER, "nothing was taken for too long")
            elif how != "left" and not self.client.socket.closed:
                await self.client.close(
                    *(self._failure or (ErrorCode.INTERNAL, "the connection failed here"))
                )
            code = self.client.count_closed()
            log_event(logging.INFO, "connection ended", session=session.id, how=how, code=code)
        finally:
            self._ended.set()

    # ---- from the client

    async def _read(self, first: Sequence[Command]) -> str:
        """Obey until the client leaves ("left"), vanishes ("gone"), or cannot be understood ("refused")."""
        session = self.session
        try:
            await self._take(first)
            while not self._handed_over:
                commands = await self.client.receive()
                if commands is None:
                    return "left" if self.client.left else "gone"
                await self._take(commands)
        except ServiceError as error:
            if error.code == ErrorCode.CLOSED:
                return "refused"  # the stream ended meanwhile; what it says last is being written
            session.stream.fail(error.code, error.message, error.advice)
            return "refused"
        except TimeoutError:
            return "slow"
        except ConnectionError:
            return "gone"  # while it was being answered
        except Exception as error:
            self._log(error)
            session.stream.fail(ErrorCode.INTERNAL, "Something went wrong here; it is logged.")
            return "refused"
        return "gone"

    def _log(self, error: Exception) -> None:
        facts = {"session": self.session.id}
        logging.getLogger("silica").error("connection failed", exc_info=error, extra={"fields": facts})

    async def _take(self, commands: Sequence[Command]) -> None:
        """Carry out the commands of one message. Its sound counts as received, also when it fails on the way."""
        session = self.session
        for command in commands:
            if isinstance(command, Audio):
                # What a resuming client need not send again.
                session.received_bytes += len(command.data)
                session.digest.update(command.data)
                self.state.metrics.audio_received_bytes.inc(len(command.data))
        self.busy = True
        for command in commands:
            await self._execute(command)
        self.busy = False

    async def _execute(self, command: Command) -> None:
        session, stream = self.session, self.session.stream
        if isinstance(command, Finalize | PlaceMarker | Finish):
            session.received_commands += 1
        if isinstance(command, Audio):
            if not session.finishing:
                await self._pace()
                async for sound in session.decoder.push(command.data):
                    await self._push_audio(sound)
        elif isinstance(command, Flush):
            async for sound in session.decoder.flush():
                await self._push_audio(sound)
        elif isinstance(command, KeepAlive):
            stream.keep_alive()
        elif isinstance(command, SendText):
            stream.keep_alive()
            await self.client.send(command.text)
        elif isinstance(command, Reply):
            await stream.wait_until_processed(SETTLE_S)
            answer = None if session.finishing else session.protocol.reply()
            if answer is not None:
                await self.client.send(answer)
        elif isinstance(command, Warn):
            stream.keep_alive()
            self._warn(command)
        elif isinstance(command, Reject):
            raise ServiceError(command.code, command.message, command.advice)
        elif session.finishing:
            return
        elif isinstance(command, Finalize):
            await stream.finalize()
        elif isinstance(command, PlaceMarker):
            await stream.place_marker(command.name)
        elif isinstance(command, Finish):
            session.finishing = True
            async for sound in session.decoder.finish():
                await self._push_audio(sound)
            await stream.finish()

    async def _push_audio(self, sound: Samples) -> None:
        """Sound into the stream, counted against the key."""
        session, keys = self.session, self.state.keys
        await session.stream.push(sound)
        keys.add_usage(session.key, sound.shape[1] / SAMPLE_RATE)
        if not keys.is_valid(session.key, self.state.clock()):
            raise ServiceError(ErrorCode.KEY, "the API key was revoked.", "Ask for a new one.")
        keys.check_minutes(session.key)

    async def _pace(self) -> None:
        """Wait while live sound is too far ahead of real time; notice a rate that does not fit."""
        session, settings = self.session, self.state.settings
        if session.request.source_is_file:
            return
        if self._watch is not None:
            detected_rate = self._watch.observe(self.state.clock(), session.stream.received_samples)
            if detected_rate is not None:
                self._warn(
                    Warn(
                        "rate",
                        f"sound arrives as if it were {detected_rate} Hz, not the declared {self._watch.declared} Hz.",
                        "Check sample_rate (and channels); if the sound comes from a file, say source=file.",
                    )
                )
        while True:
            spent_s = self.state.clock() - session.began_s
            ahead_s = (
                session.stream.received_samples / SAMPLE_RATE - CATCH_UP * spent_s - settings.max_audio_lead_s
            )
            if ahead_s <= 0 or self._handed_over:
                return
            wait_s = min(ahead_s / CATCH_UP, 1.0)
            self.state.metrics.throttled_s.inc(wait_s)
            session.stream.keep_alive()
            await asyncio.sleep(wait_s)

    def _warn(self, warning: Warn) -> None:
        if self.session.protocol.warn(warning):
            self.state.metrics.warnings.labels(warning.code).inc()
            log_event(logging.INFO, "warned", session=self.session.id, kind=warning.code)

    # ---- to the client

    async def _write(self, after: int) -> str:
        """Tell every event to the end ("told"): the last one closes the socket. Or the client vanishes ("gone")."""
        session = self.session
        try:
            if self.resumed:
                for text in session.protocol.resumed(session.received):
                    await self.client.send(text)
            async for number, event in session.stream.numbered_events(after):
                if isinstance(event, Failed):
                    self._failure = (event.code, event.message)
                for text in session.protocol.write(number, event, session.received):
                    await self.client.send(text)
                if isinstance(event, Closed):
                    await self._end(number, event)
        except TimeoutError:
            return "slow"
        except ConnectionError:
            return "gone"
        return "told"

    async def _end(self, number: int, event: Closed) -> None:
        """The last words, and the close that fits."""
        session = self.session
        digest = session.digest.hexdigest()
        for text in session.protocol.closing_messages(number, event, digest, session.finishing):
            await self.client.send(text)
        if event.reason == "drained" and not session.finishing:
            await self.client.close(ErrorCode.DRAINING, "the server is being stopped")
        elif self._failure is not None:
            await self.client.close(*self._failure)
        elif event.reason in ("finished", "drained"):
            await self.client.close()
        else:
            await self.client.close(ErrorCode.INTERNAL, event.reason)
