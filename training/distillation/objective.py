"""The objective for transcripts and pseudo-labels: CTC loss per character, and blanks only in rows without speech."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from acoustic.config import ModelConfig
from acoustic.features.front_end import FrontEnd
from training.augment import NoiseBanks
from training.augment.config import NO_SPEC_AUGMENT, AugmentConfig, SpecAugmentConfig
from training.data.features import DITHER
from training.data.loader import Batch
from training.objectives.ctc import ctc
from training.objectives.objective import Loss, PreparedBatch, hear, spoken_targets


class PseudoLabelObjective:
    """CTC loss per character; rows without speech are to output blanks. Augmentation follows its ramp."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        augment: AugmentConfig = AugmentConfig(),  # noqa: B008 (frozen)
        banks: NoiseBanks | None = None,
        spec_augment: SpecAugmentConfig = NO_SPEC_AUGMENT,
        dither: float = DITHER,
    ) -> None:
        self.config = config
        self.front_end = FrontEnd(config.features).to(device)
        self.augment = augment
        self.banks = banks
        self.spec_augment = spec_augment
        self.dither = dither

    def hear(self, batch: Batch) -> PreparedBatch:
        """Augment the batch at the strength of its step, and compute its features."""
        config = self.augment.at_step(batch.step)
        return hear(batch, self.front_end, config, self.banks, self.dither, self.spec_augment)

    def __call__(self, model: nn.Module, heard: PreparedBatch) -> Loss:
        log_probs, outputs = model(heard.features, heard.frames)
        log_probs = log_probs.float()
        targets, lengths = spoken_targets(heard.batch, heard.altered.silent)
        losses = ctc_per_character(log_probs, outputs, targets, lengths, self.config.blank)
        losses = losses + blank_loss(log_probs, outputs, heard.altered.silent, self.config.blank)
        return Loss(losses.sum(), len(heard.batch), {"ctc": losses.sum()})


def ctc_per_character(
    log_probs: Tensor, outputs: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """CTC loss of each row divided by its number of characters; 0 for rows without a target, and for rows whose target
    does not fit into their outputs.
    """
    losses = ctc(log_probs, outputs, targets, target_lengths, blank)
    return losses / target_lengths.to(losses.device).clamp(min=1) * (target_lengths.to(losses.device) > 0)


def blank_loss(log_probs: Tensor, outputs: Tensor, silent: Sequence[int], blank: int) -> Tensor:
    """Mean negative log-probability of blank over the outputs of the rows in `silent`; 0 for the other rows."""
    losses = log_probs.new_zeros(len(log_probs))
    if not silent:
        return losses
    rows = torch.tensor(silent, device=log_probs.device)
    index = torch.arange(log_probs.shape[1], device=log_probs.device)[None, :]
    count = outputs.to(log_probs.device)[rows]
    costs = torch.where(index < count[:, None], -log_probs[rows, :, blank], 0.0)
    return losses.index_copy(0, rows, costs.sum(1) / count.clamp(min=1))
