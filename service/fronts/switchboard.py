"""The house's devices and whose streams are with them: every front's streams meet here, in one planner a model."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from acoustic.windows import Heard
from service.core.messages import WindowKey
from service.fronts.link import (
    Leave,
    Opened,
    Pin,
    Release,
    Reload,
    Renew,
    Send,
    Submit,
    Want,
    WasAnswered,
    WasHeard,
    WasLost,
)
from service.metrics import Metrics
from service.models import Reloads, recogniser_options
from service.scheduling.board import Board
from service.scheduling.decode_worker import Answer
from service.scheduling.device import Device
from service.settings import Settings

Tell = Callable[[int, Any], None]
"""Tell a front (by its number; 0: all of them) a value."""


class Switchboard:
    """Passes windows and frames from fronts to devices, and what was heard back."""

    def __init__(self, settings: Settings, metrics: Metrics, board: Board, tell: Tell) -> None:
        self.settings, self.metrics, self.board = settings, metrics, board
        self._tell = tell
        self._numbers = count(1)
        self._devices: dict[int, Device] = {}
        self._current: dict[str, int] = {}
        self._users: dict[int, set[int]] = {}
        self._owner: dict[str, tuple[int, int]] = {}
        """Front and device of every stream."""
        self._asked: dict[str, set[WindowKey]] = {}
        self._reloads = Reloads(settings.models, metrics, self._renew)
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Every model's device."""
        for name in self.settings.models:
            await self._begin(name)

    async def stop(self) -> None:
        """End every device."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.gather(*(device.stop() for device in self._devices.values()))
        self._devices.clear()

    async def reload(self, model: str | None = None) -> tuple[str, ...]:
        """Load one model (or all) anew; every front serves new streams with it, old ones end where they are."""
        return await self._reloads.reload(model)

    def current(self, ticket: int, front: int, model: str) -> Opened:
        """The device that new streams of this front go to."""
        number = self._current[model]
        self._users[number].add(front)
        device = self._devices[number]
        return Opened(ticket, number, device.config, device.plan, device.precision)

    def take(self, front: int, value: Any) -> None:
        """A value of a front."""
        if isinstance(value, Submit):
            device = self._devices.get(value.device)
            if device is not None and value.stream in self._owner:
                self._asked[value.stream].add(value.key)
                device.submit(value.stream, value.key, value.window, value.live, value.urgent)
        elif isinstance(value, Send):
            device = self._devices.get(value.device)
            if device is not None:
                device.send(value.stream, value.command)
        elif isinstance(value, Pin):
            device = self._devices.get(value.device)
            if device is not None:
                self._owner[value.stream] = (front, value.device)
                self._asked[value.stream] = set()
                device.pin(value.stream, value.settings)
        elif isinstance(value, Release):
            self._release(value.stream)
        elif isinstance(value, Leave):
            self._leave(front, value.device)
        elif isinstance(value, Want | Reload):
            raise TypeError(f"{value} is a question: the house answers it")

    def gone(self, front: int) -> None:
        """A front is no more, and so are its streams."""
        for stream in [stream for stream, (owner, _) in self._owner.items() if owner == front]:
            self._release(stream)
        for number in list(self._users):
            self._leave(front, number)

    # ---- what devices say (Client)

    def heard(self, stream: str, key: WindowKey, heard: Heard) -> None:
        """A window was heard."""
        if stream in self._owner:
            self._asked[stream].discard(key)
            self._tell(self._owner[stream][0], WasHeard(stream, key, heard))

    def answered(self, stream: str, answer: Answer) -> None:
        """A decode worker answered."""
        if stream in self._owner:
            self._tell(self._owner[stream][0], WasAnswered(stream, answer))

    def lost(self, stream: str) -> None:
        """The stream's decode worker is new."""
        if stream in self._owner:
            self._tell(self._owner[stream][0], WasLost(stream))

    def given_up(self, stream: str) -> None:
        """The stream kills its decode workers."""
        if stream in self._owner:
            self._tell(self._owner[stream][0], WasLost(stream, for_good=True))

    # ---- inside

    async def _begin(self, name: str) -> None:
        options = recogniser_options(self.settings)
        device = Device(name, self.settings.device, options, self.metrics, self.board, self)
        await device.start()
        number = next(self._numbers)
        self._devices[number], self._users[number] = device, set()
        self._current[name] = number

    async def _renew(self, name: str) -> None:
        old = self._current[name]
        await self._begin(name)
        self._devices[old].retire()
        self._tell(0, Renew(name))
        self._end_if_left(old)

    def _release(self, stream: str) -> None:
        owner = self._owner.pop(stream, None)
        keys = self._asked.pop(stream, set())
        if owner is not None and owner[1] in self._devices:
            self._devices[owner[1]].release(stream, list(keys))

    def _leave(self, front: int, number: int) -> None:
        if number in self._users:
            self._users[number].discard(front)
            self._end_if_left(number)

    def _end_if_left(self, number: int) -> None:
        """A device that was replaced ends with its last front."""
        if number in self._current.values() or self._users.get(number):
            return
        self._users.pop(number, None)
        device = self._devices.pop(number, None)
        if device is not None:
            ending = asyncio.get_running_loop().create_task(device.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
