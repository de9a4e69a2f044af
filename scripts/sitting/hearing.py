"""A drawn batch as teacher and student hear it, in the widths of its shape: done ahead of the step, on a GPU in a
thread and on a stream of its own. What is altered is as in training.distillation.blockwise; the teacher's blocks are
one graph a shape.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from acoustic.constants import SAMPLE_RATE
from acoustic.features.front_end import FrontEnd
from sitting.sound import BatchShape, Drawn
from training.augment import NoiseBanks, augment_batch
from training.augment.config import TRANSFORMS, AugmentConfig
from training.data.features import DITHER, batch_features
from training.data.loader import batch_seed
from training.distillation.blockwise import SPEAKER, STEPS_PER_DEVIATION, BlockwiseTeacher


@dataclass(frozen=True)
class HeardBatch:
    """Features and what the teacher makes, on the device; `outputs` are what it heard of each row, `speaks` whether
    anybody does. Lengths that the words are compared by are on the host too."""

    shape: int
    features: Tensor
    frames: Tensor
    taught: Sequence[Tensor]
    outputs: Tensor
    speaks: Tensor
    targets: Tensor
    target_lengths: Tensor
    output_counts: Tensor
    seconds: float


class Ear:
    """Alters, takes features and asks the teacher."""

    def __init__(
        self,
        teacher: BlockwiseTeacher,
        front_end: FrontEnd,
        shapes: Sequence[BatchShape],
        alteration: AugmentConfig,
        banks: NoiseBanks | None,
        frames_per_output: int,
        device: torch.device,
    ) -> None:
        self.teacher, self.front_end, self.shapes, self.banks = teacher, front_end, shapes, banks
        self.device, self.frames_per_output = device, frames_per_output
        self._speaker = without(alteration, {*TRANSFORMS, "level", "silence"} - SPEAKER)
        self._rest = without(alteration, SPEAKER)
        self._graphs: list[Callable[[Tensor, Tensor], Sequence[Tensor]]] = []

    @torch.no_grad()
    def hear(self, drawn: Drawn) -> HeardBatch:
        shape, rows = self.shapes[drawn.shape], len(drawn.lengths)
        spoken = augment_batch(
            drawn.sound,
            drawn.lengths,
            self._speaker,
            torch.Generator().manual_seed(batch_seed(drawn.seed, 0, 1)),
        )
        width = min(shape.spoken_samples, spoken.audio.shape[1])
        wide = torch.zeros(rows, shape.spoken_samples, device=self.device)
        wide[:, :width] = spoken.audio[:, :width]
        lengths = spoken.lengths.clamp(max=shape.spoken_samples)
        generator = torch.Generator().manual_seed(drawn.seed)
        altered = augment_batch(wide, lengths, self._rest, generator, self.banks)
        features, frames = batch_features(
            self.front_end,
            altered.audio,
            altered.lengths,
            dither=DITHER,
            generator=generator,
            preceding_audio=self._rest.preceding_audio,
        )
        taught = self._teach(drawn.shape, *batch_features(self.teacher.front_end, wide, lengths))
        silent = set(altered.silent)
        said = [[] if row in silent else own for row, own in enumerate(drawn.labels)]
        spoken_frames = -(-lengths // self.front_end.config.hop_samples)
        outputs = -(-spoken_frames // self.frames_per_output)
        table = torch.tensor([outputs.tolist(), [row not in silent for row in range(rows)]]).to(self.device)
        targets = torch.tensor([label for row in said for label in row], dtype=torch.long).to(self.device)
        return HeardBatch(
            drawn.shape,
            features,
            frames,
            taught,
            table[0],
            table[1].bool(),
            targets,
            torch.tensor([len(row) for row in said]),
            outputs,
            float(lengths.sum()) / SAMPLE_RATE,
        )

    def capture(self) -> None:
        """The teacher's blocks as graphs; later batches have the shapes of these."""
        pool = torch.cuda.graph_pool_handle()
        mels = self.front_end.config.mels
        graphs = []
        for shape in self.shapes:
            features = torch.randn(shape.rows, mels, shape.frames, device=self.device)
            frames = torch.full((shape.rows,), shape.frames, device=self.device)
            self._make(features, frames)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                made = self._make(features, frames)
            graphs.append(_player(graph, features, frames, made))
        self._graphs = graphs

    def _teach(self, shape: int, features: Tensor, frames: Tensor) -> Sequence[Tensor]:
        return self._graphs[shape](features, frames) if self._graphs else self._make(features, frames)

    @torch.no_grad()
    def _make(self, features: Tensor, frames: Tensor) -> list[Tensor]:
        """For each block [rows, outputs, channels] in bytes, as StageTeacher.hear."""
        made = self.teacher._make(features, frames)
        return [
            (x.mT.float() * (scale * STEPS_PER_DEVIATION)).round().clamp(0, 255).to(torch.uint8)
            for x, scale in zip(made, self.teacher.scales, strict=True)
        ]


def _player(
    graph: Any, features: Tensor, frames: Tensor, made: Sequence[Tensor]
) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    def play(new_features: Tensor, new_frames: Tensor) -> Sequence[Tensor]:
        features.copy_(new_features)
        frames.copy_(new_frames)
        graph.replay()
        return [tensor.clone() for tensor in made]

    return play


def without(plan: AugmentConfig, parts: Iterable[str]) -> AugmentConfig:
    off: dict[str, Any] = dict.fromkeys(parts, 0.0)
    return replace(plan, **off)
