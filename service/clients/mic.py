"""The sound card as an asynchronous source of 16-bit PCM blocks with level and loss counters. No network I/O.

PortAudio's thread fills a bounded queue; blocks that do not fit are counted as lost.
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
    """An input device of PortAudio."""

    number: int
    name: str
    driver: str
    channels: int
    rate: int
    default: bool


@dataclass(frozen=True)
class Block:
    """Mono 16-bit little-endian PCM and its level."""

    pcm: bytes
    level_db: float
    peak: float
    """Largest sample, 0 to 1."""


def portaudio() -> ModuleType:
    """The sounddevice module; ServiceError PORTAUDIO when the library is missing."""
    try:
        import sounddevice
    except OSError as error:
        raise ServiceError(
            ErrorCode.PORTAUDIO,
            f"PortAudio, which records from the sound card, is not installed ({error}).",
            "Debian and Ubuntu: apt install libportaudio2. Fedora: dnf install portaudio. macOS and Windows: "
            "reinstall the Python package sounddevice. `silica transcribe FILE` works without it.",
        ) from None
    module: ModuleType = sounddevice
    return module


def devices() -> list[InputDevice]:
    """All input devices."""
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
    """By number, name, or unique part of the name; None: the default device."""
    found = devices()
    if not found:
        raise ServiceError(
            ErrorCode.NO_DEVICE,
            "No microphone: PortAudio finds no input device.",
            "Connect one, or check that this user can access the sound card (group `audio`). "
            "`silica mic --list` lists the devices.",
        )
    if requested is None:
        return next((device for device in found if device.default), found[0])
    matching = [device for device in found if requested in (str(device.number), device.name)]
    matching = matching or [device for device in found if requested.lower() in device.name.lower()]
    if len(matching) != 1:
        problem = "No input device matches" if not matching else f"{len(matching)} input devices match"
        names = "; ".join(f"{device.number} {device.name}" for device in found)
        raise ServiceError(ErrorCode.DEVICE, f"{problem} {requested!r}.", f"Available: {names}.")
    return matching[0]


def level_db(samples: np.ndarray[Any, np.dtype[np.int16]]) -> tuple[float, float]:
    """RMS level in dBFS (at least -96) and peak, 0 to 1."""
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
        """Seconds of audio lost so far, by the sound card or by a slow reader."""
        self.overflows = 0
        self._queue: asyncio.Queue[Block | None] = asyncio.Queue()
        self._queued_s = 0.0
        self._stream: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Microphone:
        self._loop = asyncio.get_running_loop()
        module = portaudio()
        problem = ""
        # 16 kHz if the system resamples, else the device's own rate: the server resamples.
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
            "Another program may be using it. `silica mic --list` lists the devices.",
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._stream is not None:
            await asyncio.to_thread(self._stream.close)

    def stop(self) -> None:
        """End the iteration after the blocks that are already captured."""
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
            self.lost_s += block_s  # PortAudio does not report the amount; usually it is one block
        if self._queued_s + block_s > QUEUE_S:
            self.lost_s += block_s
            return
        self._queued_s += block_s
        level, peak = level_db(np.frombuffer(pcm, np.int16))
        self._put(Block(pcm, level, peak))

    def _put(self, block: Block | None) -> None:
        self._queue.put_nowait(block)
