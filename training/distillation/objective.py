"""CTC per character, of transcripts and pseudo-labels (`training.distillation.pseudo_labels`)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from training.data.manifests import Clip
from training.distillation.pseudo_labels import LabelFolder, clip_key
from training.objectives.ctc import ctc
from training.objectives.objective import CtcObjective, ForwardPass, Loss, PreparedBatch


class PseudoLabelObjective(CtcObjective):
    """CTC per character; rows without speech learn to output blanks only."""

    def forward(self, model: nn.Module, prepared: PreparedBatch) -> ForwardPass:
        """The loss is that of the rows without speech."""
        log_probs, outputs = model(prepared.features, prepared.frames)
        log_probs = log_probs.float()
        loss = blank_loss(log_probs, outputs, prepared.speech, self.config.blank).sum()
        return ForwardPass(log_probs, loss, {"ctc": loss})

    def transcript_loss(self, prepared: PreparedBatch, log_probs: Tensor) -> Loss:
        """CTC of each row divided by its number of characters."""
        loss = ctc_per_character(prepared, log_probs, self.config.blank).sum()
        return Loss(loss, {"ctc": loss})


def ctc_per_character(prepared: PreparedBatch, log_probs: Tensor, blank: int) -> Tensor:
    """CTC of each row divided by its characters; 0 for rows without characters, or with more than outputs."""
    lengths = prepared.target_lengths
    losses = ctc(log_probs, prepared.output_counts, prepared.targets, lengths, blank)
    characters = lengths.to(losses.device)
    return losses / characters.clamp(min=1) * (characters > 0)


def blank_loss(log_probs: Tensor, outputs: Tensor, speech: Tensor, blank: int) -> Tensor:
    """For rows where `speech` is false the mean of minus the log-probability of blank over the row's outputs; 0 for the
    others.
    """
    index = torch.arange(log_probs.shape[1], device=log_probs.device)[None, :]
    counted = (index < outputs[:, None]) & ~speech[:, None]
    losses = torch.where(counted, -log_probs[..., blank], 0.0).sum(1)
    return losses / outputs.clamp(min=1)


def labelled_clips(clips: Sequence[Clip], base: Path, folder: LabelFolder | None) -> list[Clip]:
    """A manifest's clips with the text to learn: the transcript where there is one, else the pseudo-label. Clips that
    have neither are left out.
    """
    labels = folder.labels if folder else {}
    texts = (clip.text or labels.get(clip_key(clip.audio, base)) for clip in clips)
    return [replace(clip, text=text) for clip, text in zip(clips, texts, strict=True) if text]
