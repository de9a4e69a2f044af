"""What the house (it owns the devices) and its fronts (they own sockets and streams) tell each other.

Frozen values, pickled between one parent and its own children. A turn of the event loop is one message.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from acoustic.config import ModelConfig
from acoustic.windows import Heard, Window, WindowPlan
from service.core.messages import Conclude, Push, Replay, WindowKey
from service.errors import ErrorCode
from service.scheduling.decode_worker import Answer, Open
from service.scheduling.process import Frames, framed

MOST_TOGETHER = 64
"""Values in one message: a window with its state is up to a hundred kilobytes."""

# ---- front to house


@dataclass(frozen=True, slots=True)
class Want:
    """A recogniser of this model starts here; answered by Opened or Refused."""

    ticket: int
    model: str


@dataclass(frozen=True, slots=True)
class Leave:
    """No stream of ours is with this device any more."""

    device: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A stream begins."""

    device: int
    stream: str
    settings: Open


@dataclass(frozen=True, slots=True)
class Submit:
    """A window is ready to be heard."""

    device: int
    stream: str
    key: WindowKey
    window: Window
    live: bool
    urgent: bool


@dataclass(frozen=True, slots=True)
class Send:
    """A command for the stream's decode worker."""

    device: int
    stream: str
    command: Push | Conclude | Replay


@dataclass(frozen=True, slots=True)
class Release:
    """The stream is gone."""

    device: int
    stream: str


@dataclass(frozen=True, slots=True)
class Reload:
    """Load models anew, for every front; answered by Reloaded or Refused."""

    ticket: int
    model: str | None


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something is in a store that all fronts share: look. Passed on to all of them."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The front has its port and its models."""


# ---- house to front


@dataclass(frozen=True, slots=True)
class Opened:
    """The device of a model."""

    ticket: int
    device: int
    config: ModelConfig
    plan: WindowPlan
    precision: str


@dataclass(frozen=True, slots=True)
class Refused:
    """What was asked for cannot be: the ServiceError to raise."""

    ticket: int
    code: ErrorCode
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """These models were loaded anew."""

    ticket: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    """There is a new device under this name: new streams go there."""

    model: str


@dataclass(frozen=True, slots=True)
class WasHeard:
    """A window was heard."""

    stream: str
    key: WindowKey
    heard: Heard


@dataclass(frozen=True, slots=True)
class WasAnswered:
    """The decode worker answered."""

    stream: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class WasLost:
    """The stream's decode worker is new; with `for_good`, the stream killed too many of them."""

    stream: str
    for_good: bool = False


class Link(asyncio.Protocol):
    """A front's end of the pipe."""

    def __init__(self, on_value: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._on_value, self._on_end = on_value, on_end
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._waiting: list[Any] = []

    def tell(self, value: Any) -> None:
        """Send a value, with what else is told in this turn of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(value)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._transport is not None:
            for values in in_messages(waiting):
                self._transport.write(framed(values))

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        for values in self._frames.feed(data):
            for value in values:
                self._on_value(value)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_end()


def in_messages(values: list[Any]) -> list[list[Any]]:
    """The values in messages of bearable size."""
    return [values[at : at + MOST_TOGETHER] for at in range(0, len(values), MOST_TOGETHER)]
