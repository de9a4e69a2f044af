"""What a run minimises. An objective takes the model and a batch and answers with a loss: CTC is the one
here.

Distillation, fine-tuning and whatever comes write their own and use the same loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acoustic.features import FrontEnd
from acoustic.shape import ModelConfig
from training.augment import Alteration, Banks, alter, spec_augment, spec_cutout
from training.data.feed import Batch
from training.features import DITHER, batch_features


@dataclass(frozen=True)
class Loss:
    """`total` is the sum over the rows (the loop divides by the rows of the whole step, on all processes).

    `rows` is what it is divided by; `figures` are further numbers for the log, each a sum over the rows too.
    """

    total: Tensor
    rows: int
    figures: Mapping[str, Tensor] = field(default_factory=dict)


Objective = Callable[[nn.Module, Batch], Loss]
"""The batch comes on the training device. The model is called as the loop hands it over (it may be
wrapped).
"""


@dataclass(frozen=True)
class FeatureMasks:
    """How much SpecAugment and SpecCutout blot out; all noughts switches them off."""

    time_masks: int = 0
    time_frames: int = 75
    mel_masks: int = 0
    mel_bins: int = 20
    rectangles: int = 0
    rectangle_frames: int = 120
    rectangle_bins: int = 50

    def apply(self, features: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
        """Features with their masks."""
        if self.time_masks or self.mel_masks:
            features = spec_augment(
                features,
                lengths,
                generator,
                time_masks=self.time_masks,
                time_frames=self.time_frames,
                mel_masks=self.mel_masks,
                mel_bins=self.mel_bins,
            )
        if self.rectangles:
            features = spec_cutout(
                features,
                lengths,
                generator,
                rectangles=self.rectangles,
                time_frames=self.rectangle_frames,
                mel_bins=self.rectangle_bins,
            )
        return features


class CtcObjective:
    """Connectionist temporal classification of the transcripts (blank last), on altered sound and masked
    features.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        alteration: Alteration | None = None,
        banks: Banks | None = None,
        masks: FeatureMasks = FeatureMasks(),
        dither: float = DITHER,
    ) -> None:
        self.config = config
        self.front_end = FrontEnd(config.features).to(device)
        self.alteration = alteration
        self.banks = banks
        self.masks = masks
        self.dither = dither

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        generator = torch.Generator().manual_seed(batch.seed)
        sound, lengths = batch.sound, batch.lengths
        if self.alteration is not None:
            altered = alter(sound, lengths, self.alteration, generator, self.banks)
            sound, lengths = altered.sound, altered.lengths
        features, frames = batch_features(
            self.front_end, sound, lengths, dither=self.dither if model.training else 0.0, generator=generator
        )
        features = self.masks.apply(features, frames, generator)
        log_probs, outputs = model(features, frames)
        return Loss(
            ctc_loss(log_probs, outputs, batch.targets, batch.target_lengths, self.config.blank), len(batch)
        )


def ctc_loss(
    log_probs: Tensor, outputs: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """Summed over the rows, not divided by their lengths; rows with more labels than outputs count
    nothing.
    """
    return F.ctc_loss(
        log_probs.float().transpose(0, 1),
        targets,
        outputs,
        target_lengths,
        blank=blank,
        reduction="sum",
        zero_infinity=True,
    )
