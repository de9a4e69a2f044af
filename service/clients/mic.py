"""The sound card as an asynchronous source of 16-bit sound, with its level and its losses. Sends nothing.

PortAudio's own thread fills a bounded queue; what does not fit is counted as lost, never silently skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from acoustic.constants import SAMPLE_RATE
from service.errors import ErrorCode, ServiceError

if TYPE_CHECKING:
    from types import ModuleType

BLOCK_S = 0.04
QUEUE_S = 10.0
PREFERRED_RATE = SAMPLE_RATE


@dataclass(frozen=True)
class InputDevice:
    """One input that PortAudio offers."""

    number: int
    name: str
    driver: str
    channels: int
    rate: int
    default: bool


@dataclass(frozen=True)
class Block:
    """Mono 16-bit little-endian sound and its level."""

    pcm: bytes
    level_db: float
    peak: float
    """Largest sample, 0 to 1."""


def portaudio() -> ModuleType:
    """The sounddevice module, or what to install."""
    try:
        import sounddevice
    except OSError as error:
        raise ServiceError(
            ErrorCode.PORTAUDIO,
            f"PortAudio, which reads the sound card, is not installed ({error}).",
            "Debian and Ubuntu: apt install libportaudio2. Fedora: dnf install portaudio. macOS and Windows: "
            "reinstall the Python package sounddevice. Files need none of it: silica transcribe FILE.",
        ) from None
    module: ModuleType = sounddevice
    return module


def devices() -> list[InputDevice]:
    """Every input device."""
    module = portaudio()
    default = module.default.device[0]
    drivers = module.query_hostapis()
    return [
        InputDevice(
            number,
            str(entry["name"]),
            str(drivers[entry["hostapi"]]["name"]),
            int(entry["max_input_channels"]),
            int(entry["default_samplerate"]),
            number == default,
        )
        for number, entry in enumerate(module.query_devices())
        if entry["max_input_channels"] > 0
    ]


def find_device(requested: str | None) -> InputDevice:
    """By number, exact name, or a part of the name that only one device has; None: the system's choice."""
    found = devices()
    if not found:
        raise ServiceError(
            ErrorCode.NO_DEVICE,
            "There is no microphone: PortAudio finds no input device.",
            "Plug one in, or check that this user may use the sound card (group `audio`). "
            "`silica mic --list` shows what is found.",
        )
    if requested is None:
        return next((device for device in found if device.default), found[0])
    matching = [device for device in found if requested in (str(device.number), device.name)]
    matching = matching or [device for device in found if requested.lower() in device.name.lower()]
    if len(matching) != 1:
        problem = "No input device is" if not matching else f"{len(matching)} input devices are"
        names = "; ".join(f"{device.number} {device.name}" for device in found)
        raise ServiceError(ErrorCode.DEVICE, f"{problem} called {requested!r}.", f"There are: {names}.")
    return matching[0]


def level_db(samples: np.ndarray[Any, np.dtype[np.int16]]) -> tuple[float, float]:
    """Root mean square in decibels below full scale (-96 at least) and the largest sample from 0 to 1."""
    if samples.size == 0:
        return -96.0, 0.0
    scaled = samples.astype(np.float64) / 32768.0
    power = float(np.mean(scaled * scaled))
    return max(-96.0, 10.0 * math.log10(power) if power > 0 else -96.0), float(np.abs(scaled).max())


class Microphone:
    """`async with Microphone(device) as mic: async for block in mic: ...` until `stop()`."""

    def __init__(self, device: InputDevice) -> None:
        self.device = device
        self.rate = PREFERRED_RATE
        self.lost_s = 0.0
        """Sound that the card or a slow reader lost so far."""
        self.overflows = 0
        self._queue: asyncio.Queue[Block | None] = asyncio.Queue()
        self._queued_s = 0.0
        self._stream: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Microphone:
        self._loop = asyncio.get_running_loop()
        module = portaudio()
        problem = ""
        # 16 kHz where the system converts; else the device's own rate, which the server converts.
        for rate in dict.fromkeys((PREFERRED_RATE, self.device.rate)):
            try:
                self._stream = module.RawInputStream(
                    device=self.device.number,
                    samplerate=rate,
                    channels=1,
                    dtype="int16",
                    blocksize=round(rate * BLOCK_S),
                    callback=self._on_block,
                    finished_callback=self._on_finished,
                )
                self._stream.start()
            except module.PortAudioError as error:
                problem = str(error)
                continue
            self.rate = rate
            return self
        raise ServiceError(
            ErrorCode.DEVICE,
            f"{self.device.name!r} cannot be opened: {problem}.",
            "Another program may hold it; `silica mic --list` shows the others.",
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._stream is not None:
            await asyncio.to_thread(self._stream.close)

    def stop(self) -> None:
        """No more sound; what was captured before still comes out."""
        self._put(None)

    async def __aiter__(self) -> AsyncIterator[Block]:
        while (block := await self._queue.get()) is not None:
            self._queued_s -= len(block.pcm) / 2 / self.rate
            yield block

    # --- on PortAudio's thread ---

    def _on_block(self, data: Any, frames: int, _time: Any, status: Any) -> None:
        pcm = bytes(data)
        overflowed = bool(status.input_overflow)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                self._loop.call_soon_threadsafe(self._enqueue, pcm, overflowed)

    def _on_finished(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._put, None)

    # --- on the event loop ---

    def _enqueue(self, pcm: bytes, overflowed: bool) -> None:
        block_s = len(pcm) / 2 / self.rate
        if overflowed:
            self.overflows += 1
            self.lost_s += block_s  # PortAudio does not tell how much; one block is its usual loss
        if self._queued_s + block_s > QUEUE_S:
            self.lost_s += block_s
            return
        self._queued_s += block_s
        level, peak = level_db(np.frombuffer(pcm, np.int16))
        self._put(Block(pcm, level, peak))

    def _put(self, block: Block | None) -> None:
        self._queue.put_nowait(block)
