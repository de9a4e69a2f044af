"""The life of `silica serve --workers N`: owns port number, devices and fronts; replaces a front that dies."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from service.errors import ErrorCode, ServiceError
from service.fronts import front
from service.fronts.link import Nudge, Refused, Reload, Reloaded, Serving, Want, in_messages
from service.fronts.switchboard import Switchboard
from service.logs import say
from service.metrics import Metrics, forget_process
from service.preflight import held_ports
from service.scheduling.board import Board, columns_for
from service.scheduling.process import OVERLOADED, START_S, WorkerProcess
from service.settings import Settings
from service.streams import FINISH_S

MOST_DEATHS = 10
WITHIN_S = 300.0
"""Fronts that die more often than this are no accident: the whole service ends, for its supervisor to see."""
LONGEST_PAUSE_S = 10.0


@dataclass
class Door:
    """One front: its process while it lives, and what is to be told in this turn of the loop."""

    number: int
    process: WorkerProcess | None = None
    serving: bool = False
    pause_s: float = 0.0
    waiting: list[Any] = field(default_factory=list)


class House:
    """`async with House(settings, folder) as house:` serves; `run_until_stopped` waits for a signal, then drains."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """`folder`: where the fronts' own sockets lie; nobody else may look into it."""
        self.settings, self.folder = settings, folder
        self.port = settings.port
        self.metrics = Metrics()
        self.board = Board(columns_for(settings.models), settings.workers + 1, shared=True)
        self.switchboard = Switchboard(settings, self.metrics, self.board, self._tell)
        self.doors = [Door(number) for number in range(1, settings.workers + 1)]
        self._ports: list[socket.socket] = []
        self._warm = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._draining = False
        self._failure: ServiceError | None = None

    async def __aenter__(self) -> "House":
        try:
            self._ports = held_ports(self.settings.host, self.settings.port)
            self.port = self._ports[0].getsockname()[1]
            for door in self.doors:
                self._do(self._begin(door))
            await self.switchboard.start()
            self._warm.set()
            async with asyncio.timeout(START_S):
                while not all(door.serving for door in self.doors):
                    self._raise_failure()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            await self._close()
            raise ServiceError(
                ErrorCode.FRONTS, f"Not every front was ready after {START_S:g} s.", OVERLOADED
            ) from None
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def run_until_stopped(self, when_ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, then drain every front. A second signal ends at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._do(self._reload_all()))
        try:
            if when_ready is not None:
                when_ready()
            await self._stopping.wait()
            self._stopping.clear()
            self._raise_failure()
            await self._drain()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    # ---- the end

    async def _drain(self) -> None:
        """Every front drains by itself; a second signal, or the end of all patience, cuts that short."""
        self._draining = True
        self.metrics.draining.set(1)
        say(logging.INFO, "draining", fronts=len(self.doors), seconds=self.settings.drain_timeout_s)
        for door in self.doors:
            self._signal(door, signal.SIGTERM)
        patience_s = self.settings.drain_timeout_s + FINISH_S + self.settings.send_timeout_s + 5.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while any(door.process is not None for door in self.doors) and not self._stopping.is_set():
                    self._news.clear()
                    changed = asyncio.ensure_future(self._news.wait())
                    hurry = asyncio.ensure_future(self._stopping.wait())
                    await asyncio.wait({changed, hurry}, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    hurry.cancel()
        say(logging.INFO, "stopped")

    async def _close(self) -> None:
        self._draining = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for door in self.doors:
            if door.process is not None:
                process, door.process = door.process, None
                await process.close()
        await self.switchboard.stop()
        for port in self._ports:
            port.close()

    # ---- fronts

    async def _begin(self, door: Door) -> None:
        if door.pause_s:
            await asyncio.sleep(door.pause_s)
        settings = share_of(self.settings, door.number, self.port)
        arguments = (settings, self.board.seen_from(door.number), self.folder, os.environ.get("SILICA_HOME"))
        process = WorkerProcess(
            front.main,
            arguments,
            lambda _, values: self._take(door, values),
            lambda _: self._lost(door),
        )
        door.process = process
        try:
            await process.start()
        except BaseException:
            door.process = None
            raise

    def _lost(self, door: Door) -> None:
        now_s = asyncio.get_running_loop().time()
        pid = door.process.pid if door.process is not None else None
        was_serving, door.process, door.serving = door.serving, None, False
        door.waiting.clear()
        self.board.clear(door.number)
        self.switchboard.gone(door.number)
        if pid is not None:
            forget_process(pid)
        self._news.set()
        if self._draining:
            return
        self.metrics.worker_restarts.labels(kind="front").inc()
        say(logging.WARNING, "a front is lost; another is starting", front=door.number)
        if len(self._deaths) == MOST_DEATHS and now_s - self._deaths[0] < WITHIN_S:
            advice = "What they wrote before they died tells why."
            self._fail(
                ServiceError(ErrorCode.FRONTS, f"Fronts died {MOST_DEATHS} times within minutes.", advice)
            )
            return
        self._deaths.append(now_s)
        door.pause_s = 0.0 if was_serving else min(LONGEST_PAUSE_S, door.pause_s * 2 + 0.5)
        self._do(self._begin(door))

    def _signal(self, door: Door, number: int) -> None:
        if door.process is not None and door.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(door.process.pid, number)

    # ---- what fronts say

    def _take(self, door: Door, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, Serving):
                door.serving, door.pause_s = True, 0.0
                self._news.set()
            elif isinstance(value, Refused):
                self._fail(ServiceError(value.code, value.message, value.advice))
            elif isinstance(value, Want):
                self._do(self._open(door, value))
            elif isinstance(value, Reload):
                self._do(self._reload(door, value))
            elif isinstance(value, Nudge):
                self._tell(0, value)
            else:
                self.switchboard.take(door.number, value)

    async def _open(self, door: Door, want: Want) -> None:
        await self._warm.wait()
        self._tell(door.number, self.switchboard.current(want.ticket, door.number, want.model))

    async def _reload(self, door: Door, asked: Reload) -> None:
        try:
            self._tell(door.number, Reloaded(asked.ticket, await self.switchboard.reload(asked.model)))
        except ServiceError as error:
            self._tell(door.number, Refused(asked.ticket, error.code, error.message, error.advice))

    async def _reload_all(self) -> None:
        with contextlib.suppress(ServiceError):
            await self.switchboard.reload()

    def _tell(self, number: int, value: Any) -> None:
        for door in self.doors:
            if number in (0, door.number) and door.process is not None:
                if not door.waiting:
                    asyncio.get_running_loop().call_soon(self._flush, door)
                door.waiting.append(value)

    def _flush(self, door: Door) -> None:
        waiting, door.waiting = door.waiting, []
        if door.process is not None:
            for values in in_messages(waiting):
                door.process.send(values)

    # ---- small things

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            known = (
                error if isinstance(error, ServiceError) else ServiceError(ErrorCode.INTERNAL, repr(error))
            )
            self._fail(known)

    def _fail(self, error: ServiceError) -> None:
        self._failure = self._failure or error
        self._news.set()
        self._stopping.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def share_of(settings: Settings, number: int, port: int) -> Settings:
    """The settings of one front: what is counted in each process by itself is divided among them."""
    fronts = settings.workers
    mine = (settings.jobs_concurrency + fronts - number) // fronts
    return replace(
        settings,
        port=port,
        jobs_concurrency=mine,
        max_parked_sessions=-(-settings.max_parked_sessions // fronts),
    )
