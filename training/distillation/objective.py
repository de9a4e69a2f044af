"""The objective for transcripts and pseudo-labels: CTC loss per character, and blanks only in rows without speech."""

import torch
from torch import Tensor, nn

from training.objectives.ctc import ctc
from training.objectives.objective import CtcObjective, ForwardPass, Loss, PreparedBatch


class PseudoLabelObjective(CtcObjective):
    """CTC loss per character; rows without speech are to output blanks."""

    def forward(self, model: nn.Module, prepared: PreparedBatch) -> ForwardPass:
        """The loss is that of the rows without speech."""
        log_probs, outputs = model(prepared.features, prepared.frames)
        log_probs = log_probs.float()
        loss = blank_loss(log_probs, outputs, prepared.speech, self.config.blank).sum()
        return ForwardPass(log_probs, loss, {"ctc": loss})

    def transcript_loss(self, prepared: PreparedBatch, log_probs: Tensor) -> Loss:
        """CTC loss of each row divided by its number of characters."""
        loss = ctc_per_character(
            log_probs, prepared.output_counts, prepared.targets, prepared.target_lengths, self.config.blank
        ).sum()
        return Loss(loss, {"ctc": loss})


def ctc_per_character(
    log_probs: Tensor, outputs: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """CTC loss of each row divided by its number of characters; 0 for rows without a target, and for rows whose target
    does not fit into their outputs.
    """
    losses = ctc(log_probs, outputs, targets, target_lengths, blank)
    characters = target_lengths.to(losses.device)
    return losses / characters.clamp(min=1) * (characters > 0)


def blank_loss(log_probs: Tensor, outputs: Tensor, speech: Tensor, blank: int) -> Tensor:
    """For rows where `speech` is false, the mean negative log-probability of blank over their outputs; 0 for the
    others.
    """
    index = torch.arange(log_probs.shape[1], device=log_probs.device)[None, :]
    counted = (index < outputs[:, None]) & ~speech[:, None]
    losses = torch.where(counted, -log_probs[..., blank], 0.0).sum(1)
    return losses / outputs.clamp(min=1)
