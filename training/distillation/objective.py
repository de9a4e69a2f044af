"""CTC per character of transcripts and pseudo-labels (`training.distillation.pseudo_labels`), on sound that is
altered more and more.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from acoustic.config import ModelConfig
from acoustic.features.front_end import FrontEnd
from training.augment import NoiseBanks
from training.augment.config import NO_SPEC_AUGMENT, AugmentConfig, SpecAugmentConfig
from training.data.features import DITHER
from training.data.loader import Batch
from training.data.manifests import Clip
from training.distillation.pseudo_labels import LabelFolder, clip_key
from training.objectives.ctc import ctc
from training.objectives.objective import Loss, PreparedBatch, hear, spoken_targets


class PseudoLabelObjective:
    """CTC per character, and blanks only where nothing is said; the alteration follows a ramp."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        alteration: AugmentConfig = AugmentConfig(),  # noqa: B008 (frozen)
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
        """Altered at the strength of the batch's step."""
        plan = self.alteration.at_step(batch.step)
        return hear(batch, self.front_end, plan, self.banks, self.dither, self.masks)

    def __call__(self, model: nn.Module, heard: PreparedBatch) -> Loss:
        log_probs, outputs = model(heard.features, heard.frames)
        log_probs = log_probs.float()
        targets, lengths = spoken_targets(heard.batch, heard.altered.silent)
        words = ctc_per_character(log_probs, outputs, targets, lengths, self.config.blank)
        words = words + blank_loss(log_probs, outputs, heard.altered.silent, self.config.blank)
        return Loss(words.sum(), len(heard.batch), {"words": words.sum()})


def ctc_per_character(
    log_probs: Tensor, outputs: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """CTC of each row, per character; rows without words, or with more of them than fit, count nothing."""
    losses = ctc(log_probs, outputs, targets, target_lengths, blank)
    return losses / target_lengths.to(losses.device).clamp(min=1) * (target_lengths.to(losses.device) > 0)


def blank_loss(log_probs: Tensor, outputs: Tensor, silent: Sequence[int], blank: int) -> Tensor:
    """Of the rows in which nothing is said: how far each output is from writing nothing; nought for the others."""
    losses = log_probs.new_zeros(len(log_probs))
    if not silent:
        return losses
    rows = torch.tensor(silent, device=log_probs.device)
    index = torch.arange(log_probs.shape[1], device=log_probs.device)[None, :]
    count = outputs.to(log_probs.device)[rows]
    apart = torch.where(index < count[:, None], -log_probs[rows, :, blank], 0.0)
    return losses.index_copy(0, rows, apart.sum(1) / count.clamp(min=1))


def labelled_clips(clips: Sequence[Clip], base: Path, folder: LabelFolder | None) -> list[Clip]:
    """A manifest's clips with the text to learn: the transcript where there is one, else the pseudo-label. Clips that
    have neither are left out.
    """
    labels = folder.labels if folder else {}
    texts = (clip.text or labels.get(clip_key(clip.audio, base)) for clip in clips)
    return [replace(clip, text=text) for clip, text in zip(clips, texts, strict=True) if text]
