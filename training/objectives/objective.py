"""What a run minimizes. An objective takes the model and a batch and answers with a loss: CTC is the one here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from acoustic.config import ModelConfig
from acoustic.features.front_end import FrontEnd
from training.augment import AugmentedBatch, NoiseBanks, augment_batch, mask_features
from training.augment.config import NO_AUGMENT, NO_SPEC_AUGMENT, AugmentConfig, SpecAugmentConfig
from training.data.features import DITHER, batch_features
from training.data.loader import Batch, batch_seed
from training.objectives.ctc import ctc


@dataclass(frozen=True)
class Loss:
    """`total` is the sum over the rows (the loop divides by the rows of the whole step, on all processes).

    `rows` is what it is divided by; `figures` are further numbers for the log, each a sum over the rows too.
    """

    total: Tensor
    rows: int
    figures: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedBatch:
    """A batch as the model hears it: altered sound, and its normalized, masked features."""

    batch: Batch
    altered: AugmentedBatch
    features: Tensor
    frames: Tensor


class Objective(Protocol):
    """What a run minimizes. The batch comes on the training device."""

    def hear(self, batch: Batch) -> PreparedBatch:
        """Alter the sound and take its features: no model and no gradient, so a thread does it ahead of the step."""

    def __call__(self, model: nn.Module, heard: PreparedBatch) -> Loss:
        """The loss of the model, called as the loop hands it over (it may be wrapped)."""


class CtcObjective:
    """Connectionist temporal classification of the transcripts (blank last), on altered sound and masked
    features.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        alteration: AugmentConfig = NO_AUGMENT,
        banks: NoiseBanks | None = None,
        masks: SpecAugmentConfig = NO_SPEC_AUGMENT,
        dither: float = DITHER,
    ) -> None:
        self.config = config
        self.front_end = FrontEnd(config.features).to(device)
        self.alteration = alteration
        self.banks = banks
        self.masks = masks
        self.dither = dither

    def hear(self, batch: Batch) -> PreparedBatch:
        """Altered by the chain, where there is one."""
        return hear(
            batch, self.front_end, self.alteration.at_step(batch.step), self.banks, self.dither, self.masks
        )

    def __call__(self, model: nn.Module, heard: PreparedBatch) -> Loss:
        batch = heard.batch
        log_probs, outputs = model(heard.features, heard.frames)
        targets, lengths = spoken_targets(batch, heard.altered.silent)
        # Summed over the rows, not divided by their lengths.
        losses = ctc(log_probs, outputs, targets, lengths, self.config.blank)
        return Loss(losses.sum(), len(batch))


def spoken_targets(batch: Batch, silent: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The transcripts' labels one after another, none for the rows in which nothing is said, and how many each has."""
    labels = torch.split(batch.targets, batch.target_lengths.tolist())
    said = [own[:0] if row in silent else own for row, own in enumerate(labels)]
    return torch.cat(said), torch.tensor([len(own) for own in said], device=batch.targets.device)


@torch.no_grad()
def hear(
    batch: Batch,
    front_end: FrontEnd,
    plan: AugmentConfig,
    banks: NoiseBanks | None,
    dither: float,
    masks: SpecAugmentConfig,
) -> PreparedBatch:
    """What the model hears of a batch; everything drawn for it comes from the batch's own seed."""
    generator = torch.Generator().manual_seed(batch.seed)
    altered = augment_batch(batch.audio, batch.lengths, plan, generator, banks)
    features, frames = batch_features(
        front_end,
        altered.audio,
        altered.lengths,
        dither=dither,
        generator=generator,
        preceding_audio=plan.preceding_audio,
    )
    # A seed of their own: the same masks whatever the chain has drawn.
    drawn = torch.Generator().manual_seed(batch_seed(batch.seed, 0, 0))
    return PreparedBatch(batch, altered, mask_features(features, frames, masks, drawn), frames)
