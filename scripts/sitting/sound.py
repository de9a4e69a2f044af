"""All sound of a sitting on its device, as it comes part by part, and the batches drawn from it.

Batches come in a few shapes alone, so that a GPU can play each as one graph: clips of like length together, as many
as fill the seconds of a step.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.config import ModelConfig
from acoustic.constants import SAMPLE_RATE
from sitting.parts import NotWhole, PackedClip, Part, decoded, part_files, read_part
from training.augment.config import AugmentConfig
from training.augment.speed import STEPS
from training.data.loader import batch_seed, encode
from training.data.manifests import Clip
from training.errors import TrainingError

EDGES_S = (3.0, 4.0, 5.0, 6.5, 8.5, 12.0, 17.0)
"""Each shape holds clips up to so long: a tenth of a batch is padding."""
ROUND = 4000
"""Rows are as long as a whole number of these."""
MIN_ROWS = 2
LOUDEST = 32767.0


@dataclass(frozen=True)
class BatchShape:
    """A batch of rows, before and after their speed changes."""

    samples: int
    rows: int
    spoken_samples: int
    frames: int
    outputs: int


def batch_shapes(
    config: ModelConfig, alteration: AugmentConfig, seconds: float, max_duration_s: float
) -> tuple[BatchShape, ...]:
    """From short to long."""
    slowest = round(STEPS / min(1.0, *alteration.speed_range)) / STEPS if alteration.speed else 1.0
    shapes = []
    for edge_s in (*(edge for edge in EDGES_S if edge < max_duration_s), max_duration_s):
        samples = math.ceil(edge_s * SAMPLE_RATE)
        spoken = math.ceil(samples * slowest / ROUND) * ROUND
        frames = -(-spoken // config.features.hop_samples)
        rows = max(MIN_ROWS, int(seconds // edge_s))
        shapes.append(BatchShape(samples, rows, spoken, frames, -(-frames // config.frames_per_output)))
    return tuple(shapes)


@dataclass(frozen=True)
class Drawn:
    """A batch as it is drawn: its shape by number, padded rows on the device, and the seed of all that follows."""

    shape: int
    sound: Tensor
    lengths: Tensor
    labels: Sequence[Sequence[int]]
    seed: int


@dataclass(frozen=True)
class _Bucket:
    """The clips of one shape, what they weigh up to each, and how likely the shape is."""

    clips: NDArray[Any]
    weights: NDArray[Any]
    share: float


class Sound:
    """Clips on the device. One thread takes parts in, another draws batches; a part is known once it is all there."""

    def __init__(
        self,
        folder: Path,
        shapes: Sequence[BatchShape],
        alphabet: str,
        device: torch.device,
        *,
        pool: Any,
        hours: float,
        seed: int = 0,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.shapes, self.alphabet, self.device = folder, shapes, alphabet, device
        self.seed = seed
        self.begins: list[int] = []
        self.counts: list[int] = []
        self.labels: list[list[int]] = []
        self.weights: list[float] = []
        self._flat = torch.zeros(int(hours * 3600 * SAMPLE_RATE), dtype=torch.int16, device=device)
        self._filled = 0
        self._pool, self._tell = pool, tell
        self._known: set[str] = set()
        self._complained: set[str] = set()
        self._buckets: dict[int, _Bucket] = {}

    @property
    def hours(self) -> float:
        return self._filled / SAMPLE_RATE / 3600

    def take(self, most: int | None = None) -> int:
        """Take in the parts that have come since, so many at the most; how many those are."""
        taken = 0
        for path in part_files(self.folder):
            if taken == most:
                break
            if path.name in self._known:
                continue
            try:
                self._add(read_part(path))
            except NotWhole as error:
                self._complain(path.name, f"{error} It is looked at again.")
                continue
            except TrainingError as error:
                self._complain(path.name, f"{path.name} is left out: {error}")
                self._known.add(path.name)
                continue
            self._known.add(path.name)
            taken += 1
            self._tell(f"sound: {len(self.counts)} clips, {self.hours:.2f} h with {path.name}")
        return taken

    def watch(self, ended: Event, every_s: float = 1.0) -> None:
        """Take in whatever comes until the sitting ends: in a thread of its own, on a stream of its own."""
        if self.device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream())
        while not ended.wait(every_s):
            self.take(most=1)

    def wait(self, until: float) -> None:
        """For the first part; the steps need not wait for the others, though they be there."""
        while not self.take(most=1):
            if time.time() > until:
                raise TrainingError(
                    f"No part of a sitting came into {self.folder}: expected part-00.zip and so on."
                )
            time.sleep(0.2)

    def draw(self, step: int) -> Drawn:
        """The batch of a step: a shape by how much sound it has, rows by how often the recipe names them."""
        random = np.random.default_rng([self.seed, step])
        buckets = self._buckets
        shares = np.cumsum([bucket.share for bucket in buckets.values()])
        chosen = int(np.searchsorted(shares / shares[-1], random.random()))
        number = list(buckets)[min(chosen, len(buckets) - 1)]
        shape, bucket = self.shapes[number], buckets[number]
        places = np.searchsorted(bucket.weights, random.random(shape.rows) * bucket.weights[-1])
        rows = bucket.clips[np.minimum(places, len(bucket.clips) - 1)].tolist()
        table = torch.tensor([[self.begins[row], min(self.counts[row], shape.samples)] for row in rows])
        on = table.to(self.device)
        place = torch.arange(shape.samples, device=self.device)[None]
        taken = self._flat[(on[:, :1] + place).clamp(max=len(self._flat) - 1)].float() / LOUDEST
        sound = torch.where(place < on[:, 1:], taken, 0.0)
        labels = [self.labels[row] for row in rows]
        return Drawn(number, sound, table[:, 1], labels, batch_seed(self.seed, step, 0))

    def _add(self, part: Part) -> None:
        labels = [_labels(clip, self.alphabet) for clip in part.clips]
        at, room = self._filled, len(self._flat)
        for samples in decoded(part, self._pool, self.folder):
            sound = torch.from_numpy(samples)[: max(0, room - at)]
            self._flat[at : at + len(sound)] = sound.to(self.device)
            at += len(sound)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        at, fitting = self._filled, 0
        for clip, own in zip(part.clips, labels, strict=True):
            if at + clip.samples > room:
                break
            self.begins.append(at)
            self.counts.append(clip.samples)
            self.labels.append(own)
            self.weights.append(clip.weight)
            at += clip.samples
            fitting += 1
        self._filled = at
        if fitting < len(part.clips):
            self._tell(
                f"sound: {len(part.clips) - fitting} clips found no room, which is for "
                f"{room / SAMPLE_RATE / 3600:.2f} h: --hours makes more."
            )
        self._sort()

    def _sort(self) -> None:
        counts, weights = np.array(self.counts), np.array(self.weights)
        shape = np.searchsorted([shape.samples for shape in self.shapes], counts)
        shape = np.minimum(shape, len(self.shapes) - 1)
        buckets = {}
        for number in np.unique(shape).tolist():
            clips = np.nonzero(shape == number)[0]
            share = float((weights[clips] * counts[clips]).sum())
            buckets[number] = _Bucket(clips, np.cumsum(weights[clips]), share)
        self._buckets = buckets

    def _complain(self, name: str, what: str) -> None:
        """Once about each part."""
        if name not in self._complained:
            print(what, file=sys.stderr, flush=True)
            self._complained.add(name)


def _labels(clip: PackedClip, alphabet: str) -> list[int]:
    return encode(Clip(Path("a packed clip"), clip.samples / SAMPLE_RATE, clip.text), alphabet)
