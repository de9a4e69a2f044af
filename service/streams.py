"""The one facade that every face uses: a Recogniser takes in streams, a Stream takes sound and tells events.

No wire format and no HTTP here. Everything runs on one event loop; the work is done by the engine's and the
decoder's workers.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from service.core.events import Event
from service.core.stream_settings import StreamSettings

__all__ = ["Capacity", "Recogniser", "RecogniserOptions", "Stream", "StreamSettings"]

if TYPE_CHECKING:
    from service.metrics import Metrics


@dataclass(frozen=True)
class RecogniserOptions:
    """How the recogniser uses the machine. None: measured or derived from it at start."""

    precision: str | None = None
    engine_workers: int | None = None
    decode_workers: int | None = None
    language_model: str | Path | None = "shipped"
    max_streams: int | None = None
    hops_s: tuple[float, ...] = (0.16, 0.32, 0.64, 1.28)
    resume_s: float = 30.0
    parked_limit: int = 256
    cache_folder: Path | None = None


@dataclass(frozen=True)
class Capacity:
    """What the recogniser carries now and how much it could."""

    streams: int
    streams_most: int
    parked: int
    hop_s: float
    load: float
    waiting_windows: int


class Recogniser:
    """Takes in streams while there is room; owns planner, engine and decode workers."""

    def __init__(
        self,
        model: str,
        device: Literal["cpu", "cuda"] = "cpu",
        options: RecogniserOptions = RecogniserOptions(),
        metrics: "Metrics | None" = None,
    ) -> None:
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Warm, every kind of worker alive, and not draining."""
        raise NotImplementedError

    @property
    def model_name(self) -> str:
        """The name that Started carries."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the workers, warm and measure them. Returns when streams may come."""

    async def stop(self, drain_s: float = 0.0) -> None:
        """Take no more streams, let the open ones finish for so long, then finish what is open and stop."""

    def open(self, settings: StreamSettings = StreamSettings()) -> "Stream":
        """A new stream; ServiceError "capacity" (with retry_after_s) when full, "draining" when stopping."""
        raise NotImplementedError

    def park(self, stream: "Stream") -> None:
        """Its client vanished: keep it for `resume_s`; work in flight goes on. Then Closed("lost")."""

    def resume(self, stream_id: str, owner: str = "", after: int = 0) -> "Stream":
        """The parked stream again; ServiceError "resume" when unknown, expired, or of another owner.

        Then read `stream.numbered(after)`, and go on pushing from `stream.received_samples`.
        """
        raise NotImplementedError

    def capacity(self) -> Capacity:
        """Room and load now."""
        raise NotImplementedError


class Stream:
    """One client's sound and what is heard in it. Push and read may run in different tasks of one loop."""

    id: str
    settings: StreamSettings
    received_samples: int
    """Samples a channel, at 16 kHz, taken so far."""

    async def push(self, samples: npt.NDArray[np.float32]) -> None:
        """Sound [channels, n], float32, 16 kHz. Waits while too much is unheard: that is the back-pressure.

        ServiceError "audio" for a wrong shape; ServiceError "closed" after the end.
        """

    def keep_alive(self) -> None:
        """The client is there, though silent."""

    async def finalize(self) -> None:
        """Everything sent so far becomes final now; one Final(from_finalize) a channel, even when empty."""

    async def mark(self, name: str) -> None:
        """Ask for Marked(name) once everything sent before it has been heard (Finish brings it too)."""

    async def finish(self) -> None:
        """No more sound; the rest is heard, told, and Closed("finished") follows."""

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop now: what is unheard is dropped, Closed follows."""

    def fail(self, code: str, message: str, advice: str = "") -> None:
        """The face found the sound unusable: Failed, then Closed("failed")."""

    def events(self) -> AsyncIterator[Event]:
        """Every event, in order, ending after Closed. One reader at a time."""
        raise NotImplementedError

    def numbered(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """The same with its number (1, 2, ...), starting after `after`. Superseded partials are left out."""
        raise NotImplementedError
