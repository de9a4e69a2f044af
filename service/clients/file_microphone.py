"""An audio file as a live source: the same blocks as the microphone, at real-time pace. No network I/O."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from acoustic.constants import SAMPLE_RATE
from service.audio.files import AudioFile
from service.clients.mic import BLOCK_S, Block, level_db


class FileMicrophone:
    """`async for block in FileMicrophone(recording)`. `pace` 1 is real time, 0 is without delay."""

    def __init__(self, recording: AudioFile, pace: float = 1.0) -> None:
        self.recording = recording
        self.pace = pace
        self.rate = SAMPLE_RATE
        self.lost_s = 0.0
        self._stopped = False

    async def __aenter__(self) -> FileMicrophone:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the iteration."""
        self._stopped = True

    async def __aiter__(self) -> AsyncIterator[Block]:
        loop = asyncio.get_running_loop()
        start_s, sent_samples = loop.time(), 0
        size = round(SAMPLE_RATE * BLOCK_S)
        pending = np.zeros(0, np.float32)
        blocks = iter(self.recording)
        while (samples := await asyncio.to_thread(next, blocks, None)) is not None:
            pending = np.concatenate([pending, samples])
            while len(pending) >= size:
                yield self._block(pending[:size])
                pending = pending[size:]
                sent_samples += size
                if self._stopped:
                    return
                if self.pace > 0:
                    await asyncio.sleep(
                        max(0.0, start_s + sent_samples / SAMPLE_RATE / self.pace - loop.time())
                    )
        if len(pending) and not self._stopped:
            yield self._block(pending)

    def _block(self, samples: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Block:
        pcm = np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2")
        return Block(pcm.tobytes(), *level_db(pcm))
