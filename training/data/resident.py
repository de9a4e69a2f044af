"""All sound of a run decoded once into one tensor, in the main memory or on the training device.

16 bits a sample: an hour is 115 MB. A GPU that learns faster than files can be read needs its sound this near.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from training.data.audio import ClipError, read_clip
from training.data.manifests import Clip

FULL_SCALE = 32767.0


class ResidentSound:
    """Clips one behind the other; `broken` says why a clip is not there."""

    def __init__(self, clips: Sequence[Clip], device: torch.device, threads: int = 2) -> None:
        self.broken: dict[int, str] = {}
        pieces: list[Tensor] = []
        self.begins, self.counts = [], []
        place = 0
        with ThreadPoolExecutor(threads, thread_name_prefix="resident") as pool:
            for index, decoded in enumerate(pool.map(_decode, clips)):
                if isinstance(decoded, str):
                    self.broken[index] = decoded
                    decoded = torch.zeros(0, dtype=torch.int16)
                pieces.append(decoded)
                self.begins.append(place)
                self.counts.append(len(decoded))
                place += len(decoded)
        self.samples = torch.cat(pieces).to(device) if pieces else torch.zeros(0, dtype=torch.int16)

    def rows(self, indices: Sequence[int], longest: int) -> Tensor:
        """Those clips as padded rows `[rows, longest]` of float32."""
        padded = torch.zeros(len(indices), longest, dtype=torch.int16, device=self.samples.device)
        for row, index in zip(padded, indices, strict=True):
            begin, count = self.begins[index], min(self.counts[index], longest)
            row[:count] = self.samples[begin : begin + count]
        return padded.float() / FULL_SCALE


def _decode(clip: Clip) -> Tensor | str:
    """A clip in 16 bits, or what is wrong with it."""
    try:
        sound = read_clip(clip.audio)
    except ClipError as error:
        return str(error)
    return torch.from_numpy(np.round(sound.clip(-1.0, 1.0) * FULL_SCALE).astype(np.int16))
