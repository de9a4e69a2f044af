"""Distillation: a student writes the words that a teacher (or a transcript) gives, with the teacher's frames beside it.

Words by CTC are what teaches; the frame-wise distance and the characters spread over time are its companions.
The teacher's answer is either stored (`silica label`) and stretched to the altered sound, or given on the spot
for the very sound that the student hears (`training.live`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from acoustic.features import FrontEnd
from acoustic.shape import ModelConfig
from training.alteration import NO_MASKS, Alteration, FeatureMasks
from training.augment import Altered, Banks
from training.augment.draw import valid
from training.ctc import ctc
from training.data.feed import Batch
from training.data.manifests import Clip
from training.features import DITHER
from training.hidden import deviations, head_of, hidden_loss
from training.labels import HIDDEN_WIDTH, LabelFolder, choose_target, clip_key
from training.objectives import Heard, Loss, hear, twice, vary

CHARACTER_REACH_OUTPUTS = 8
"""A character counts for the outputs within 160 ms of where the teacher wrote it."""


@dataclass(frozen=True)
class Weights:
    """How much each loss counts; each is a mean over its row's characters or outputs. With `agree` a step hears every
    row in two views, which are to write the same."""

    words: float = 1.0
    frames: float = 0.3
    characters: float = 0.3
    hidden: float = 0.0
    agree: float = 0.0


@dataclass(frozen=True)
class Ramp:
    """Strength of the alteration: `first` at step 0, 1 at `steps`. Light at the start, or nothing is learned."""

    first: float = 0.2
    steps: int = 20_000

    def at(self, step: int) -> float:
        """The strength of one step."""
        return min(1.0, self.first + (1.0 - self.first) * step / max(1, self.steps))


@dataclass(frozen=True)
class Answer:
    """What the teacher says of a batch: log-probabilities [rows, outputs, classes], how many outputs count in each row
    (0: this row has no answer to compare with), words for rows that have no transcript, and a hidden layer, with the
    outputs that count of that."""

    log_probs: Tensor
    outputs: Tensor
    words: tuple[Tensor | None, ...]
    hidden: Tensor | None = None
    hidden_outputs: Tensor | None = None


@dataclass(frozen=True)
class Stored:
    """Where a clip's answer lies, and whether its frames agree with the text (a hidden layer always does)."""

    folder: LabelFolder
    key: str
    agrees: bool = True


@dataclass(frozen=True)
class Labelled:
    """Clips to train on, and their stored answers by the clip's path."""

    clips: list[Clip]
    answers: dict[str, Stored]


def without(answer: Answer, rows: Sequence[int]) -> Answer:
    """The answer with no outputs to compare with in some rows."""

    def silenced(outputs: Tensor) -> Tensor:
        outputs = outputs.clone()
        outputs[list(rows)] = 0
        return outputs

    hidden = answer.hidden_outputs
    return replace(
        answer,
        outputs=silenced(answer.outputs),
        hidden_outputs=None if hidden is None else silenced(hidden),
    )


class Teacher(Protocol):
    """Stored or live."""

    def answer(self, batch: Batch, altered: Altered, outputs: int) -> Answer:
        """For the altered sound, as many outputs as the student makes."""


class StoredTeacher:
    """Answers that `silica label` kept, stretched where the sound was played faster or slower."""

    def __init__(
        self, answers: Mapping[str, "Stored"], classes: int, *, frames: bool = True, hidden: bool = False
    ) -> None:
        self.answers = answers
        self.classes = classes
        self.frames = frames
        """Whether log-probabilities are asked for; where not they are nought."""
        self.hidden = hidden
        """Whether a hidden layer is."""

    def answer(self, batch: Batch, altered: Altered, outputs: int) -> Answer:
        """Rows without a stored answer count no outputs."""
        device = altered.sound.device
        stretched = torch.zeros(len(batch), outputs, self.classes)
        hidden = torch.zeros(len(batch), outputs, HIDDEN_WIDTH) if self.hidden else None
        counted, hidden_counted = torch.zeros(2, len(batch), dtype=torch.long)
        before, after = batch.lengths.tolist(), altered.lengths.tolist()
        for row, name in enumerate(batch.names):
            if name not in self.answers:
                continue
            stored = self.answers[name]
            heard = stored.folder.labels[stored.key].outputs
            wanted = min(outputs, round(heard * after[row] / max(1, before[row])))
            taken = ((np.arange(wanted) + 0.5) * heard / max(1, wanted)).astype(np.int64)
            if self.frames and stored.agrees:
                stretched[row, :wanted] = torch.from_numpy(stored.folder.log_probs(stored.key)[taken])
            if hidden is not None:
                hidden[row, :wanted] = torch.from_numpy(deviations(stored.folder.hidden(stored.key)[taken]))
                hidden_counted[row] = wanted
            counted[row] = wanted * stored.agrees
        answer = Answer(stretched.to(device), counted.to(device), (None,) * len(batch))
        if hidden is None:
            return answer
        return replace(answer, hidden=hidden.to(device), hidden_outputs=hidden_counted.to(device))


class DistilObjective:
    """One step of distillation on altered sound."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        teacher: Teacher,
        *,
        weights: Weights = Weights(),
        alteration: Alteration = Alteration(),  # noqa: B008 (frozen)
        ramp: Ramp = Ramp(),
        banks: Banks | None = None,
        masks: FeatureMasks = NO_MASKS,
        dither: float = DITHER,
        hidden_late: int = 0,
    ) -> None:
        self.config = config
        self.hidden_late = hidden_late * config.outputs_per_step
        self.teacher = teacher
        self.weights = weights
        self.alteration = alteration
        self.ramp = ramp
        self.banks = banks
        self.masks = masks
        self.dither = dither
        self.front_end = FrontEnd(config.features).to(device)

    def hear(self, batch: Batch) -> Heard:
        """Altered by the chain at the strength of the batch's step."""
        plan = self.alteration.scaled(self.ramp.at(batch.step))
        return hear(batch, self.front_end, plan, self.banks, self.dither)

    def vary(self, heard: Heard, use: int) -> Heard:
        """Masked; later uses stretched and warped too. Of two views each is varied by itself, but for the stretch."""
        return vary(twice(heard) if self.weights.agree else heard, self.masks, use)

    def __call__(self, model: nn.Module, heard: Heard) -> Loss:
        batch, altered = heard.batch, heard.altered
        log_probs, outputs = model(heard.features, heard.frames)
        log_probs = log_probs.float()
        answer = without(self.teacher.answer(batch, altered, log_probs.shape[1]), altered.silent)
        targets, target_lengths = self._targets(batch, altered, answer)
        words = words_loss(log_probs, outputs, targets, target_lengths, self.config.blank)
        words = words + silence_loss(log_probs, outputs, altered.silent, self.config.blank)
        rows, figures = self.weights.words * words, {"words": words.sum()}
        if self.weights.frames:
            apart = frame_loss(log_probs, answer)
            rows, figures["frames"] = rows + self.weights.frames * apart, apart.sum()
        if self.weights.characters:
            characters = character_loss(log_probs, answer, self.config.blank)
            rows, figures["characters"] = rows + self.weights.characters * characters, characters.sum()
        if self.weights.agree:
            apart = agreement_loss(log_probs, outputs, target_lengths)
            rows, figures["agree"] = rows + self.weights.agree * apart, apart.sum()
        if answer.hidden is not None and answer.hidden_outputs is not None:
            said = head_of(model).said
            assert said is not None
            apart = hidden_loss(said, answer.hidden, answer.hidden_outputs, self.hidden_late)
            counting = (answer.hidden_outputs > self.hidden_late).sum().clamp(min=1)
            # Logged as the mean of the rows that have one.
            rows, figures["hidden"] = rows + self.weights.hidden * apart, apart.sum() * len(batch) / counting
        return Loss(rows.sum(), len(batch), figures)

    def _targets(self, batch: Batch, altered: Altered, answer: Answer) -> tuple[Tensor, Tensor]:
        """The transcript's labels where the clip has one and was not spliced with another, else the teacher's."""
        device = altered.sound.device
        whole = (altered.cut_at.to(device) >= altered.lengths.to(device)).tolist()
        chosen: list[Tensor] = []
        for row, own in enumerate(torch.split(batch.targets, batch.target_lengths.tolist())):
            heard = answer.words[row]
            believed = own if heard is None or (len(own) and whole[row]) else heard
            chosen.append(own[:0] if row in altered.silent else believed.to(device))
        lengths = torch.tensor([len(labels) for labels in chosen], device=device)
        return torch.cat(chosen), lengths


def words_loss(
    log_probs: Tensor, outputs: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """CTC of each row, per character; rows without words, or with more of them than fit, count nothing."""
    losses = ctc(log_probs, outputs, targets, target_lengths, blank)
    return losses / target_lengths.to(losses.device).clamp(min=1) * (target_lengths.to(losses.device) > 0)


def silence_loss(log_probs: Tensor, outputs: Tensor, silent: Sequence[int], blank: int) -> Tensor:
    """Of the rows in which nothing is said: how far each output is from writing nothing; nought for the others."""
    losses = log_probs.new_zeros(len(log_probs))
    if not silent:
        return losses
    rows = torch.tensor(silent, device=log_probs.device)
    index = torch.arange(log_probs.shape[1], device=log_probs.device)[None, :]
    count = outputs.to(log_probs.device)[rows]
    apart = torch.where(index < count[:, None], -log_probs[rows, :, blank], 0.0)
    return losses.index_copy(0, rows, apart.sum(1) / count.clamp(min=1))


def agreement_loss(log_probs: Tensor, outputs: Tensor, target_lengths: Tensor) -> Tensor:
    """Of rows that come twice, the second ones after all first ones: the Kullback-Leibler distance of each from what
    its other view says, per character (CR-CTC, Yao et al. 2024, arXiv 2410.05101); rows without words count nothing.
    """
    own = log_probs
    other = torch.cat(log_probs.detach().chunk(2)[::-1])
    inside = valid(outputs.to(own.device), own.shape[1])
    apart = torch.where(inside, (other.exp() * (other - own)).sum(-1), 0.0).sum(1)
    characters = target_lengths.to(own.device)
    return apart / characters.clamp(min=1) * (characters > 0)


def frame_loss(log_probs: Tensor, answer: Answer) -> Tensor:
    """Kullback-Leibler distance of each row from the teacher, per output."""
    inside = _inside(answer)
    apart = (answer.log_probs.exp() * (answer.log_probs - log_probs)).sum(-1)
    return torch.where(inside, apart, 0.0).sum(1) / inside.sum(1).clamp(min=1)


def character_loss(log_probs: Tensor, answer: Answer, blank: int) -> Tensor:
    """Cross entropy of each row with the characters that the teacher wrote nearby, blank left out of the choice.

    It says what is being said at every moment and nothing about when to write it: the way off the plateau
    where a young student writes nothing but blanks.
    """
    wanted = nearby_characters(answer.log_probs, answer.outputs, blank)
    spoken = log_probs[..., :blank]
    chosen = (spoken - torch.logsumexp(spoken, -1, keepdim=True)).gather(2, wanted.clamp(min=0)[..., None])[
        ..., 0
    ]
    there = wanted >= 0
    return -torch.where(there, chosen, 0.0).sum(1) / there.sum(1).clamp(min=1)


def nearby_characters(log_probs: Tensor, outputs: Tensor, blank: int) -> Tensor:
    """The character written nearest to each output [rows, outputs]; -1 where none is near or the row is over."""
    best = log_probs.argmax(-1)
    index = torch.arange(best.shape[1], device=best.device)[None, :].expand_as(best)
    written = (best != blank) & (index < outputs.to(best.device)[:, None])
    far = best.shape[1] + CHARACTER_REACH_OUTPUTS + 1
    before = torch.where(written, index, -far).cummax(1).values
    after = torch.where(written, index, 2 * far).flip(1).cummin(1).values.flip(1)
    nearest = torch.where(index - before <= after - index, before, after)
    near = ((nearest - index).abs() <= CHARACTER_REACH_OUTPUTS) & (index < outputs.to(best.device)[:, None])
    return torch.where(near, best.gather(1, nearest.clamp(0, best.shape[1] - 1)), -1)


def labelled_clips(clips: Sequence[Clip], base: Path, folder: LabelFolder | None) -> "Labelled":
    """A manifest's clips with the text that the student is to write; those nobody finds words in are left out."""
    chosen, answers = [], {}
    for clip in clips:
        key = clip_key(clip.audio, base)
        label = folder.labels.get(key) if folder else None
        target = choose_target(clip.text, label.words) if label else None
        if label and not target:
            continue
        if target and folder:
            clip = replace(clip, text=target.text)
            answers[str(clip.audio)] = Stored(folder, key, target.frames_agree)
        if clip.text:
            chosen.append(clip)
    return Labelled(chosen, answers)


def _inside(answer: Answer) -> Tensor:
    index = torch.arange(answer.log_probs.shape[1], device=answer.log_probs.device)
    return index[None, :] < answer.outputs[:, None]
