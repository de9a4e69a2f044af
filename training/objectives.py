"""What a run minimises. An objective takes the model and a batch and answers with a loss: CTC is the one
here.

Distillation, fine-tuning and whatever comes write their own and use the same loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from acoustic.features import FrontEnd
from acoustic.shape import ModelConfig
from training.alteration import NO_ALTERATION, NO_MASKS, Alteration, FeatureMasks
from training.augment import Altered, Banks, alter, blot_out, colour, stretch, warp_mel
from training.augment.draw import uniform
from training.ctc import ctc
from training.data.feed import Batch, batch_seed
from training.features import DITHER, batch_features


@dataclass(frozen=True)
class Loss:
    """`total` is the sum over the rows (the loop divides by the rows of the whole step, on all processes).

    `rows` is what it is divided by; `figures` are further numbers for the log, each a sum over the rows too.
    """

    total: Tensor
    rows: int
    figures: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Heard:
    """A batch as the model hears it: altered sound, and its normalised features."""

    batch: Batch
    altered: Altered
    features: Tensor
    frames: Tensor

    def without_sound(self) -> "Heard":
        """What is needed to use it again, a tenth as large."""
        batch = replace(self.batch, sound=self.batch.sound[:, :0].clone())
        altered = replace(self.altered, sound=self.altered.sound[:, :0].clone())
        return replace(self, batch=batch, altered=altered)


class Objective(Protocol):
    """What a run minimises. The batch comes on the training device."""

    def hear(self, batch: Batch) -> Heard:
        """Alter the sound and take its features: no model and no gradient, so a thread does it ahead of the step."""

    def vary(self, heard: Heard, use: int) -> Heard:
        """What is altered in the features, anew for each use (0 is the first)."""

    def __call__(self, model: nn.Module, heard: Heard) -> Loss:
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
        alteration: Alteration = NO_ALTERATION,
        banks: Banks | None = None,
        masks: FeatureMasks = NO_MASKS,
        dither: float = DITHER,
    ) -> None:
        self.config = config
        self.front_end = FrontEnd(config.features).to(device)
        self.alteration = alteration
        self.banks = banks
        self.masks = masks
        self.dither = dither

    def hear(self, batch: Batch) -> Heard:
        """Altered by the chain, where there is one."""
        return hear(batch, self.front_end, self.alteration, self.banks, self.dither)

    def vary(self, heard: Heard, use: int) -> Heard:
        """Masked; later uses stretched and warped too."""
        return vary(heard, self.masks, use)

    def __call__(self, model: nn.Module, heard: Heard) -> Loss:
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
    plan: Alteration,
    banks: Banks | None,
    dither: float,
) -> Heard:
    """What the model hears of a batch; everything drawn for it comes from the batch's own seed."""
    generator = torch.Generator().manual_seed(batch.seed)
    altered = alter(batch.sound, batch.lengths, plan, generator, banks)
    features, frames = batch_features(
        front_end, altered.sound, altered.lengths, dither=dither, generator=generator, before=plan.before
    )
    return Heard(batch, altered, features, frames)


def twice(heard: Heard) -> Heard:
    """Every row two times, the second ones after all first ones: two views of a batch, once it is varied."""
    batch, altered = heard.batch, heard.altered

    def doubled(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.cat([tensor, tensor]) for tensor in tensors)

    sound, lengths, targets, target_lengths = doubled(
        batch.sound, batch.lengths, batch.targets, batch.target_lengths
    )
    altered_sound, altered_lengths, cut_at, features, frames = doubled(
        altered.sound, altered.lengths, altered.cut_at, heard.features, heard.frames
    )
    silent = (*altered.silent, *(len(batch) + row for row in altered.silent))
    return Heard(
        replace(
            batch,
            sound=sound,
            lengths=lengths,
            targets=targets,
            target_lengths=target_lengths,
            names=2 * batch.names,
        ),
        replace(altered, sound=altered_sound, lengths=altered_lengths, cut_at=cut_at, silent=silent),
        features,
        frames,
    )


@torch.no_grad()
def vary(heard: Heard, masks: FeatureMasks, use: int) -> Heard:
    """The batch as its first, second ... use hears it. What is drawn comes from the batch's seed and the use.

    The first use hears the sound as it was altered, later ones a little faster or slower, from another mouth and
    through another microphone.
    """
    generator = torch.Generator().manual_seed(batch_seed(heard.batch.seed, use, 0))
    features, frames, altered = heard.features, heard.frames, heard.altered
    if use and masks.warp != (1.0, 1.0):
        low, high = (uniform(len(features), *masks.warp, generator) for _ in range(2))
        features = warp_mel(features, low, high)
    if use and masks.colour:
        features = colour(features, frames, masks.colour, generator)
    if use and masks.stretch != (1.0, 1.0):
        before = frames
        # All rows alike: they were put together for their like length.
        factors = uniform(1, *masks.stretch, generator).expand(len(features))
        features, frames = stretch(features, frames, factors)
        longer = frames.double() / before.clamp(min=1)
        lengths, cut_at = ((place * longer.to(place.device)).round().to(place.dtype) for place in
                           (altered.lengths, altered.cut_at))  # fmt: skip
        altered = replace(altered, lengths=lengths, cut_at=cut_at)
    return Heard(heard.batch, altered, blot_out(features, frames, masks, generator), frames)
