"""What the house (it owns the devices) and its fronts (they own sockets and streams) tell each other.

Frozen values, pickled between one parent and its own children. A turn of the event loop is one message.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from acoustic.architectures import ModelConfig
from acoustic.windows import Window, WindowOutput, WindowPlan
from service.errors import ErrorCode
from service.scheduling.decode_worker import DecodeResult, OpenStream
from service.scheduling.process import MessageReader, encode_message
from service.session.messages import EndUtterance, PushFrames, Replay, WindowKey

MAX_VALUES_PER_MESSAGE = 64
"""Values in one message: a window with its state is up to a hundred kilobytes."""

# ---- front to house


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A recognizer of this model starts here; answered by Opened or Refused."""

    request_id: int
    model: str


@dataclass(frozen=True, slots=True)
class CloseDevice:
    """No stream of ours is with this device any more."""

    device: int


@dataclass(frozen=True, slots=True)
class PinStream:
    """A stream begins."""

    device: int
    stream: str
    settings: OpenStream


@dataclass(frozen=True, slots=True)
class SubmitWindow:
    """A window is ready to be heard."""

    device: int
    stream: str
    key: WindowKey
    window: Window
    live: bool
    urgent: bool


@dataclass(frozen=True, slots=True)
class SendCommand:
    """A command for the stream's decode worker."""

    device: int
    stream: str
    command: PushFrames | EndUtterance | Replay


@dataclass(frozen=True, slots=True)
class ReleaseStream:
    """The stream is gone."""

    device: int
    stream: str


@dataclass(frozen=True, slots=True)
class ReloadModels:
    """Load models anew, for every front; answered by Reloaded or Refused."""

    request_id: int
    model: str | None


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Something is in a store that all fronts share: look. Passed on to all of them."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The front has its port and its models."""


# ---- house to front


@dataclass(frozen=True, slots=True)
class DeviceOpened:
    """The device of a model."""

    request_id: int
    device: int
    config: ModelConfig
    plan: WindowPlan
    precision: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """What was asked for cannot be: the ServiceError to raise."""

    request_id: int
    code: ErrorCode
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class ModelsReloaded:
    """These models were loaded anew."""

    request_id: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceReplaced:
    """There is a new device under this name: new streams go there."""

    model: str


@dataclass(frozen=True, slots=True)
class StreamWindowDone:
    """A window was heard."""

    stream: str
    key: WindowKey
    window_done: WindowOutput


@dataclass(frozen=True, slots=True)
class StreamDecoded:
    """The decode worker answered."""

    stream: str
    result: DecodeResult


@dataclass(frozen=True, slots=True)
class StreamDecoderLost:
    """The stream's decode worker is new; with `abandoned`, the stream killed too many of them."""

    stream: str
    abandoned: bool = False


class IpcConnection(asyncio.Protocol):
    """A front's end of the pipe."""

    def __init__(self, on_value: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._on_value, self._on_end = on_value, on_end
        self._frames = MessageReader()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[Any] = []

    def send(self, value: Any) -> None:
        """Send a value, with what else is told in this turn of the loop."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(value)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._transport is not None:
            for values in split_messages(outbox):
                self._transport.write(encode_message(values))

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


def split_messages(values: list[Any]) -> list[list[Any]]:
    """The values in messages of bearable size."""
    return [values[at : at + MAX_VALUES_PER_MESSAGE] for at in range(0, len(values), MAX_VALUES_PER_MESSAGE)]
