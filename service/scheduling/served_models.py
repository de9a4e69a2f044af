"""The models being served, by name: started, picked, replaced while serving. One recognizer each.

Knows no wire. What a stream is lies in streams.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from service.errors import ErrorCode, ServiceError
from service.logs import log_event
from service.metrics import Metrics
from service.recognizer import Recognizer, RecognizerOptions
from service.scheduling.device import Device, DeviceClient
from service.scheduling.shared_counters import SharedCounters, columns_for
from service.settings import Settings


def recognizer_options(settings: Settings) -> RecognizerOptions:
    """What the settings say about how a recognizer uses the machine."""
    return RecognizerOptions(
        precision=settings.precision,
        engine_workers=settings.engine_workers,
        decode_workers=settings.decode_workers,
        language_model=None if settings.language_model == "none" else settings.language_model,
        max_streams=settings.max_streams,
        overcommit=settings.overcommit,
        server_processes=settings.workers,
        hops_s=settings.hops_s,
        resume_s=settings.resume_timeout_s,
        parked_limit=settings.max_parked_sessions,
        cache_folder=settings.cache_folder,
    )


RETIRE_S = 600.0
"""How long the streams of a replaced model may go on."""


class ModelReloader:
    """Loads served models anew, one after the other and never twice at a time; counts and tells how it went."""

    def __init__(
        self, names: tuple[str, ...], metrics: Metrics, replace_model: Callable[[str], Awaitable[None]]
    ) -> None:
        self._names, self._metrics, self._renew = names, metrics, replace_model
        self._busy = False

    async def reload(self, name: str | None = None) -> tuple[str, ...]:
        """One model, or all; answers which."""
        wanted = self._names if name is None else (name,)
        if any(one not in self._names for one in wanted):
            served = ", ".join(self._names)
            raise ServiceError(ErrorCode.MODEL, f"There is no model {name!r} here.", f"Served: {served}.")
        if self._busy:
            raise ServiceError(
                ErrorCode.BUSY, "A reload is under way.", "Wait for it to end.", retry_after_s=5.0
            )
        self._busy = True
        try:
            for one in wanted:
                try:
                    await self._renew(one)
                except Exception as error:
                    # The old model goes on serving: a broken file on disk must not take the service down.
                    self._metrics.model_reloads.labels("failed").inc()
                    log_event(logging.ERROR, "model not reloaded", model=one, reason=str(error))
                    raise
                self._metrics.model_reloads.labels("done").inc()
                log_event(logging.INFO, "model reloaded", model=one)
        finally:
            self._busy = False
        return wanted


class ServedModels:
    """Every recognizer of this process. The first name is the one that streams get who name none we have."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        counters: SharedCounters | None = None,
        open_device: Callable[[str, DeviceClient], Device] | None = None,
        reload_for_all: Callable[[str | None], Awaitable[tuple[str, ...]]] | None = None,
    ) -> None:
        """Several processes that share devices bring how to open one, and how to reload for all of them."""
        self.settings = settings
        self.metrics = metrics
        self.names = settings.models
        self.counters = counters if counters is not None else SharedCounters(columns_for(self.names))
        self._open_device = open_device
        self._reload_for_all = reload_for_all
        self._serving: dict[str, Recognizer] = {}
        self._retiring: dict[Recognizer, asyncio.Task[None]] = {}
        self._reloads = ModelReloader(self.names, metrics, self.replace_model)

    @property
    def ready(self) -> bool:
        """Every model warm and its workers alive."""
        return len(self._serving) == len(self.names) and all(one.ready for one in self._serving.values())

    @property
    def default(self) -> Recognizer:
        """The recognizer of the first model."""
        return self.pick(None)

    def items(self) -> tuple[tuple[str, Recognizer], ...]:
        """Every name with its recognizer."""
        return tuple(self._serving.items())

    def pick(self, name: str | None) -> Recognizer:
        """The recognizer of this name. Names we do not have (other vendors' model names) get the default."""
        found = self._serving.get(name or "") or self._serving.get(self.names[0])
        if found is None:
            raise ServiceError(
                ErrorCode.STARTING, "The model is still being loaded.", "Try again soon.", retry_after_s=2.0
            )
        return found

    async def start(self) -> None:
        """Load and warm every model."""
        for name in self.names:
            self._serving[name] = await self._started(name)

    async def reload(self, name: str | None = None) -> tuple[str, ...]:
        """Load one model (or all) anew and serve new streams with it; the old one ends with its last stream."""
        if self._reload_for_all is not None:
            return await self._reload_for_all(name)  # `replace_model` follows, here as everywhere
        return await self._reloads.reload(name)

    async def replace_model(self, name: str) -> None:
        """New streams of this model go to a fresh recognizer; the old one ends with its last stream."""
        fresh = await self._started(name)
        old, self._serving[name] = self._serving.get(name), fresh
        if old is not None:
            await self._retire(old)

    async def stop(self, drain_s: float = 0.0) -> None:
        """Take no more streams; let the open ones finish for so long."""
        for task in self._retiring.values():
            task.cancel()
        await asyncio.gather(*self._retiring.values(), return_exceptions=True)
        ending = [*self._serving.values(), *self._retiring]
        self._retiring.clear()
        await asyncio.gather(*(one.stop(drain_s) for one in ending))

    async def _started(self, name: str) -> Recognizer:
        device: Literal["cpu", "cuda"] = self.settings.device
        opener = self._open_device
        fresh = Recognizer(
            name,
            device,
            recognizer_options(self.settings),
            self.metrics,
            self.counters,
            None if opener is None else lambda client: opener(name, client),
        )
        await fresh.start()
        return fresh

    async def _retire(self, old: Recognizer) -> None:
        """Let the streams of a replaced model finish, then free it; does not wait for that."""
        old.retire()
        # A long time: these streams are in the middle of a talk and have done nothing wrong.
        ending = asyncio.create_task(old.stop(drain_s=max(self.settings.drain_timeout_s, RETIRE_S)))
        self._retiring[old] = ending
        ending.add_done_callback(lambda task: None if task.cancelled() else self._retiring.pop(old, None))
