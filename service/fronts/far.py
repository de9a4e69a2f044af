"""The device as a front sees it: everything is passed on to the house, which owns it."""

import asyncio
from itertools import count
from typing import Any

from acoustic.config import ModelConfig
from acoustic.windows import Window, WindowPlan
from service.core.messages import Conclude, Push, Replay, WindowKey
from service.errors import ErrorCode, ServiceError
from service.fronts.link import (
    Leave,
    Link,
    Nudge,
    Opened,
    Pin,
    Refused,
    Release,
    Reload,
    Reloaded,
    Send,
    Submit,
    Want,
    WasAnswered,
    WasHeard,
    WasLost,
)
from service.scheduling.board import Board
from service.scheduling.decode_worker import Open
from service.scheduling.device import Client


class FarHouse:
    """A front's conversation with the house: questions and their answers, and whose stream is whose."""

    def __init__(self, board: Board, kind: str) -> None:
        self.board, self.kind = board, kind
        self.link: Link
        self.clients: dict[str, Client] = {}
        self._tickets = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}

    def open_device(self, model: str, client: Client) -> "FarDevice":
        """The house's device of this model; it is asked for when it is started."""
        return FarDevice(self, model, client)

    async def want(self, model: str) -> Opened:
        """Ask for a model's device."""
        answer: Opened = await self._ask(lambda ticket: Want(ticket, model))
        return answer

    async def reload(self, model: str | None) -> tuple[str, ...]:
        """Have models loaded anew, for every front."""
        answer: Reloaded = await self._ask(lambda ticket: Reload(ticket, model))
        return answer.models

    def nudge(self) -> None:
        """Have every front look into the stores that they share."""
        self.link.tell(Nudge())

    def take(self, value: Any) -> bool:
        """A value from the house; False when it is not for a device or a question."""
        if isinstance(value, WasHeard):
            if value.stream in self.clients:
                self.clients[value.stream].heard(value.stream, value.key, value.heard)
        elif isinstance(value, WasAnswered):
            if value.stream in self.clients:
                self.clients[value.stream].answered(value.stream, value.answer)
        elif isinstance(value, WasLost):
            client = self.clients.get(value.stream)
            if client is not None and value.for_good:
                client.given_up(value.stream)
            elif client is not None:
                client.lost(value.stream)
        elif isinstance(value, Opened | Reloaded | Refused):
            asked = self._asked.pop(value.ticket, None)
            if asked is not None and not asked.done():
                if isinstance(value, Refused):
                    asked.set_exception(ServiceError(value.code, value.message, value.advice))
                else:
                    asked.set_result(value)
        else:
            return False
        return True

    async def _ask(self, question: Any) -> Any:
        ticket = next(self._tickets)
        answer = self._asked[ticket] = asyncio.get_running_loop().create_future()
        self.link.tell(question(ticket))
        return await answer


class FarDevice:
    """One model's device, elsewhere."""

    def __init__(self, house: FarHouse, model: str, client: Client) -> None:
        self.model_name, self.kind = model, house.kind
        self._house, self._client = house, client
        self._number = 0
        self.config: ModelConfig
        self.plan: WindowPlan
        self.precision = ""

    async def start(self) -> None:
        """Returns when the house has it running."""
        opened = await self._house.want(self.model_name)
        self._number = opened.device
        self.config, self.plan, self.precision = opened.config, opened.plan, opened.precision

    async def stop(self) -> None:
        """No stream of ours is with it any more."""
        if self._number:
            self._house.link.tell(Leave(self._number))

    def retire(self) -> None:
        """The house knows that another follows: it began it."""

    @property
    def alive(self) -> bool:
        """Workers of both kinds work, as the house says."""
        return self._house.board.total(f"alive:{self.model_name}") > 0

    def pin(self, stream: str, settings: Open) -> None:
        """A stream begins."""
        self._house.clients[stream] = self._client
        self._house.link.tell(Pin(self._number, stream, settings))

    def submit(self, stream: str, key: WindowKey, window: Window, live: bool, urgent: bool) -> None:
        """A window is ready to be heard."""
        self._house.link.tell(Submit(self._number, stream, key, window, live, urgent))

    def send(self, stream: str, command: Push | Conclude | Replay) -> None:
        """A command for the stream's decode worker."""
        self._house.link.tell(Send(self._number, stream, command))

    def release(self, stream: str, keys: list[WindowKey]) -> None:
        """The stream is gone."""
        self._house.clients.pop(stream, None)
        self._house.link.tell(Release(self._number, stream))

    def hold_hop(self, hop_s: float | None) -> None:
        """Measurements hold hops in one process only."""
        raise ServiceError(ErrorCode.HOP, "A front cannot hold the hop.", "Measure with one process.")
