"""The device as a front sees it: everything is passed on to the house, which owns it."""

import asyncio
from itertools import count
from typing import Any

from acoustic.architectures import ModelConfig
from acoustic.windows import Window, WindowPlan
from service.errors import ErrorCode, ServiceError
from service.scheduling.decode_worker import OpenStream
from service.scheduling.device import DeviceClient
from service.scheduling.shared_counters import SharedCounters
from service.session.messages import EndUtterance, PushFrames, Replay, WindowKey
from service.workers.ipc import (
    CloseDevice,
    DeviceOpened,
    IpcConnection,
    ModelsReloaded,
    OpenDevice,
    PinStream,
    Rejected,
    ReleaseStream,
    ReloadModels,
    SendCommand,
    StoreChanged,
    StreamDecoded,
    StreamDecoderLost,
    StreamWindowDone,
    SubmitWindow,
)


class SupervisorClient:
    """A front's conversation with the house: questions and their answers, and whose stream is whose."""

    def __init__(self, counters: SharedCounters, kind: str) -> None:
        self.counters, self.kind = counters, kind
        self.ipc: IpcConnection
        self.clients: dict[str, DeviceClient] = {}
        self._request_ids = count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}

    def open_device(self, model: str, client: DeviceClient) -> "RemoteDevice":
        """The house's device of this model; it is asked for when it is started."""
        return RemoteDevice(self, model, client)

    async def open(self, model: str) -> DeviceOpened:
        """Ask for a model's device."""
        result: DeviceOpened = await self._request(lambda request_id: OpenDevice(request_id, model))
        return result

    async def reload(self, model: str | None) -> tuple[str, ...]:
        """Have models loaded anew, for every front."""
        result: ModelsReloaded = await self._request(lambda request_id: ReloadModels(request_id, model))
        return result.models

    def notify_peers(self) -> None:
        """Have every front look into the stores that they share."""
        self.ipc.send(StoreChanged())

    def handle(self, value: Any) -> bool:
        """A value from the house; False when it is not for a device or a question."""
        if isinstance(value, StreamWindowDone):
            if value.stream in self.clients:
                self.clients[value.stream].window_done(value.stream, value.key, value.window_done)
        elif isinstance(value, StreamDecoded):
            if value.stream in self.clients:
                self.clients[value.stream].decoded(value.stream, value.result)
        elif isinstance(value, StreamDecoderLost):
            client = self.clients.get(value.stream)
            if client is not None and value.abandoned:
                client.stream_abandoned(value.stream)
            elif client is not None:
                client.decoder_lost(value.stream)
        elif isinstance(value, DeviceOpened | ModelsReloaded | Rejected):
            pending = self._pending.pop(value.request_id, None)
            if pending is not None and not pending.done():
                if isinstance(value, Rejected):
                    pending.set_exception(ServiceError(value.code, value.message, value.advice))
                else:
                    pending.set_result(value)
        else:
            return False
        return True

    async def _request(self, question: Any) -> Any:
        request_id = next(self._request_ids)
        result = self._pending[request_id] = asyncio.get_running_loop().create_future()
        self.ipc.send(question(request_id))
        return await result


class RemoteDevice:
    """One model's device, elsewhere."""

    def __init__(self, supervisor: SupervisorClient, model: str, client: DeviceClient) -> None:
        self.model_name, self.kind = model, supervisor.kind
        self._supervisor, self._client = supervisor, client
        self._number = 0
        self.config: ModelConfig
        self.plan: WindowPlan
        self.precision = ""

    async def start(self) -> None:
        """Returns when the house has it running."""
        opened = await self._supervisor.open(self.model_name)
        self._number = opened.device
        self.config, self.plan, self.precision = opened.config, opened.plan, opened.precision

    async def stop(self) -> None:
        """No stream of ours is with it any more."""
        if self._number:
            self._supervisor.ipc.send(CloseDevice(self._number))

    def retire(self) -> None:
        """The house knows that another follows: it began it."""

    @property
    def alive(self) -> bool:
        """Workers of both kinds work, as the house says."""
        return self._supervisor.counters.total(f"alive:{self.model_name}") > 0

    def pin(self, stream: str, settings: OpenStream) -> None:
        """A stream begins."""
        self._supervisor.clients[stream] = self._client
        self._supervisor.ipc.send(PinStream(self._number, stream, settings))

    def submit(self, stream: str, key: WindowKey, window: Window, live: bool, urgent: bool) -> None:
        """A window is ready to be heard."""
        self._supervisor.ipc.send(SubmitWindow(self._number, stream, key, window, live, urgent))

    def send(self, stream: str, command: PushFrames | EndUtterance | Replay) -> None:
        """A command for the stream's decode worker."""
        self._supervisor.ipc.send(SendCommand(self._number, stream, command))

    def release(self, stream: str, keys: list[WindowKey]) -> None:
        """The stream is gone."""
        self._supervisor.clients.pop(stream, None)
        self._supervisor.ipc.send(ReleaseStream(self._number, stream))

    def pin_hop(self, hop_s: float | None) -> None:
        """Measurements hold hops in one process only."""
        raise ServiceError(ErrorCode.HOP, "A front cannot hold the hop.", "Measure with one process.")
