"""Stage by stage: blocks of a student learn what those of its teacher make, at first each from the teacher's own input.

A deep network that learns from its end alone is told little: what comes out of the teacher half way says at every 20 ms
what to make of the sound so far. While a stage is given what the teacher's stage was given, it depends on no other
stage of the student, and comes near the teacher within hours of sound (experiments.csv: run P). Then the student hears
more and more of what it makes itself, and in the end nothing else.

The teacher hears another mouth or pace just as the student does, but no noise, no room and no telephone. With `late`
a stage makes things so many
outputs after the teacher, which hears what is yet to come where the student must not.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from acoustic.checkpoint import Checkpoint
from acoustic.config import FeatureConfig, ModelConfig
from acoustic.features.front_end import FrontEnd
from acoustic.network import Network
from acoustic.network.folding import fold
from acoustic.network.modules import Masks, Unit, convolve, prefers_time_major, time_major
from training.augment import Banks, alter
from training.augment.config import PARTS, AugmentConfig, FeatureMasks
from training.augment.sampling import chosen_rows
from training.data.audio import ClipError, read_clip
from training.data.features import DITHER, batch_features
from training.data.loader import Batch, batch_seed
from training.data.manifests import Clip
from training.distillation.blockwise_settings import BlockwisePart
from training.distillation.objective import Ramp, silence_loss, words_loss
from training.errors import TrainingError
from training.objectives.objective import Loss, PreparedBatch, hear, spoken_targets
from training.run.precision import quickest

STEPS_PER_DEVIATION = 16
"""What a block makes is kept in bytes: sixteen deviations fit in, which few outputs exceed."""
SCALE_CLIPS = 20
SLIGHT = 0.3
"""Noise on the features, in deviations, that shows which channels count."""
MIN_SHARE = 0.1
"""What any channel counts."""
SPEAKER = frozenset({"speed", "vocal_tract"})
"""What the speaker does: parts of the chain that the teacher hears too."""
STAGES = "stages"
"""What the hooks are called among a student's attributes."""


class BlockwiseTeacher:
    """What the teacher's blocks make of sound, in bytes; each block's outputs have a deviation of about one."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        blocks: Sequence[int],
        device: torch.device,
        student: FeatureConfig | None = None,
    ) -> None:
        self.network = fold(checkpoint).network().to(device).eval().requires_grad_(False)
        known = len(self.network.blocks)
        if not all(0 <= block < known for block in blocks):
            raise TrainingError(
                f"stages.of is {list(blocks)}: the blocks of {checkpoint.config.name} are numbered 0 to {known - 1}."
            )
        self.config = checkpoint.config
        self.blocks = tuple(blocks)
        self.front_end = FrontEnd(heard_like(checkpoint.config.features, student)).to(device)
        self._device = device
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(quickest(device))
        compile_taps(self.network)
        self.scales: list[float] = []
        self.shares: list[Tensor] = []
        """For each block how much each of its channels counts, one on average."""

    def measure(self, clips: Sequence[Clip]) -> None:
        """In some clips drawn evenly from all: each block's deviation, and how much its channels count."""
        sums = [torch.zeros(3, dtype=torch.float64) for _ in self.blocks]
        counting = [
            torch.zeros(self.config.blocks[block].channels, device=self._device) for block in self.blocks
        ]
        for clip in clips[:: -(-len(clips) // SCALE_CLIPS) or 1]:
            try:
                sound = torch.from_numpy(read_clip(clip.audio))[None].to(self._device)
            except ClipError:
                continue
            features, frames = batch_features(self.front_end, sound, torch.tensor([sound.shape[1]]))
            with torch.no_grad():
                *taught, written = self._make(features, frames, write=True)
            for total, made in zip(sums, taught, strict=True):
                exact = made.double()
                total += torch.stack([torch.ones_like(exact).sum(), exact.sum(), exact.square().sum()]).cpu()
            for total, pull in zip(counting, self._pulls(features, frames, written), strict=True):
                total += pull / pull.mean().clamp(min=1e-20)
        self.shares = [MIN_SHARE + (1 - MIN_SHARE) * total / total.mean() for total in counting]
        self.scales = []
        for count, total, squares in (total.tolist() for total in sums):
            variance = squares / max(1.0, count) - (total / max(1.0, count)) ** 2
            if not variance > 0:
                raise TrainingError(
                    "The teacher makes nothing of these clips: none of those looked at can be read."
                )
            self.scales.append(variance**-0.5)

    def hear(self, sound: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """For each block [rows, outputs, channels] in bytes."""
        with torch.no_grad():
            made = self._make(*batch_features(self.front_end, sound, lengths))
        return tuple(
            (x.mT.float() * (scale * STEPS_PER_DEVIATION)).round().clamp(0, 255).to(torch.uint8)
            for x, scale in zip(made, self.scales, strict=True)
        )

    def _pulls(self, features: Tensor, frames: Tensor, written: Tensor) -> Iterator[Tensor]:
        """For each block and channel the squared gradient of what noise changes in what is written. Few channels of the
        last blocks matter: of QuartzNet's block 15 a quarter has nineteen twentieths of it."""
        noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(0)).to(features)
        *heard, said = self._make((features + SLIGHT * noise).requires_grad_(), frames, write=True)
        apart = (written.exp() * (written - said)).sum()
        for gradient in torch.autograd.grad(apart, heard):
            yield gradient.float().square().sum((0, 2))

    def _make(self, features: Tensor, frames: Tensor, *, write: bool = False) -> list[Tensor]:
        """What each block makes; with `write` the log-probabilities behind it."""
        made, needed = [], None if write else self.blocks[-1] + 1
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
            masks = Masks(frames)
            x = features if self._dtype is None else features.to(self._dtype)
            x = time_major(x) if prefers_time_major(x) else x
            for index, block in enumerate(self.network.blocks[:needed]):
                x = block([x], masks)
                if index in self.blocks:
                    made.append(x)
            if write:
                scores = convolve(masks.apply(x, self.config.stride_frames), self.network.output)
                made.append(scores.mT.float().log_softmax(-1))
        return made


def compile_taps(network: Network) -> None:
    """Depthwise taps by the compiled kernel, which otherwise serves training alone (acoustic.network.depthwise)."""
    for unit in network.modules():
        if isinstance(unit, Unit) and unit.depthwise is not None:
            unit.depthwise.training = True


def heard_like(teacher: FeatureConfig, student: FeatureConfig | None) -> FeatureConfig:
    """The teacher's front end, normalized causally where its student is: it hears as well so, and what a stage is to
    make depends on nothing that the stage cannot know. Else a tenth of what varies in the first one does
    (experiments.csv: run Q)."""
    if student is None or student.normalize != "causal" or student.mels != teacher.mels:
        return teacher
    known = ("normalize", "mean", "deviation", "prior_frames", "memory_frames", "max_level_db")
    same: dict[str, Any] = {name: getattr(student, name) for name in known}
    return replace(teacher, **same)


class Stages:
    """Hooks in a student: what its stages make is kept, and what they are given may be the teacher's."""

    def __init__(self, network: Network, by: Sequence[int]) -> None:
        last = len(network.blocks) - 1
        if not all(0 <= block < last for block in by):
            raise TrainingError(f"stages.by is {list(by)}: expected blocks of the student, 0 to {last - 1}.")
        self.given: list[Tensor | None] = [None] * len(by)
        self.made: list[Tensor] = []
        for stage, block in enumerate(by):
            network.blocks[block].register_forward_hook(self._keep)
            network.blocks[block + 1].register_forward_pre_hook(self._give(stage))

    @contextmanager
    def giving(self, given: Sequence[Tensor | None]) -> Iterator[None]:
        """What follows each stage hears this in place of what the stage makes; None: what it makes."""
        self.given, self.made = list(given), []
        try:
            yield
        finally:
            self.given, self.made = [None] * len(self.given), []

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], made: Tensor) -> None:
        if module.training:
            self.made.append(made)

    def _give(self, stage: int) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            given = self.given[stage]
            if given is None or not module.training:
                return None
            panes, masks = inputs
            return [*panes[:-1], given.to(panes[-1].dtype)], masks

        return hook


def attach_stages(network: nn.Module, by: Sequence[int]) -> None:
    """Let a network in training be heard and given to, stage by stage."""
    assert isinstance(network, Network)
    setattr(network, STAGES, Stages(network, by))


@dataclass(frozen=True)
class BlockwiseBatch(PreparedBatch):
    """A batch, and what the teacher's blocks make of what its speakers say (for each [rows, outputs, channels]), with
    the outputs that count in each row."""

    taught: tuple[Tensor, ...] = ()
    outputs: Tensor | None = None


@dataclass(kw_only=True)
class BlockwiseObjective:
    """One step of learning stage by stage, and of writing words, on altered sound."""

    config: ModelConfig
    device: torch.device
    teacher: BlockwiseTeacher
    part: BlockwisePart
    alteration: AugmentConfig
    ramp: Ramp
    banks: Banks | None
    masks: FeatureMasks

    def __post_init__(self) -> None:
        config, teacher = self.config, self.teacher
        for of, by in zip(self.part.of, self.part.by, strict=True):
            if _channels_and_rate(teacher.config, of) != (
                config.blocks[by].channels,
                config.frames_per_output,
            ):
                channels, rate = _channels_and_rate(teacher.config, of)
                raise TrainingError(
                    f"Block {by} of {config.name} cannot learn block {of} of {teacher.config.name}: that makes "
                    f"{channels} channels every {rate} frames, this {config.blocks[by].channels}, and "
                    f"{config.name} writes every {config.frames_per_output}."
                )
        self.front_end = FrontEnd(config.features).to(self.device)

    def hear(self, batch: Batch) -> BlockwiseBatch:
        """Altered by the chain at the strength of the batch's step; the teacher hears what the speaker does."""
        plan = self.alteration.scaled(self.ramp.at(batch.step))
        speaker = _without(plan, {*PARTS, "level", "nothing"} - SPEAKER)
        generator = torch.Generator().manual_seed(batch_seed(batch.seed, 0, 1))
        spoken = alter(batch.sound, batch.lengths, speaker, generator)
        batch = replace(batch, sound=spoken.sound, lengths=spoken.lengths)
        heard = hear(batch, self.front_end, _without(plan, SPEAKER), self.banks, DITHER, self.masks)
        taught = self.teacher.hear(spoken.sound, spoken.lengths)
        frames = -(-spoken.lengths // self.config.features.hop_samples)
        outputs = -(-frames // self.config.frames_per_output)
        return BlockwiseBatch(**_parts(heard), taught=taught, outputs=outputs.to(self.device))

    def __call__(self, model: nn.Module, heard: PreparedBatch) -> Loss:
        assert isinstance(heard, BlockwiseBatch) and heard.outputs is not None
        batch, altered = heard.batch, heard.altered
        stages = cast(Stages, getattr(getattr(model, "module", model), STAGES))
        taught, inside = self._taught(heard, heard.outputs)
        with stages.giving(self._given(taught, batch)):
            log_probs, outputs = model(heard.features, heard.frames)
            losses = [
                stage_loss(made.mT.float(), values, counting, shares)
                for made, values, counting, shares in zip(
                    stages.made, taught, inside, self.teacher.shares, strict=True
                )
            ]
        log_probs = log_probs.float()
        targets, lengths = spoken_targets(batch, altered.silent)
        words = words_loss(log_probs, outputs, targets, lengths, self.config.blank)
        words = words + silence_loss(log_probs, outputs, altered.silent, self.config.blank)
        figures = {"words": words.sum()}
        figures |= {f"stage_{index}": loss.detach() * len(batch) for index, loss in enumerate(losses, 1)}
        total = self.part.words * words.sum() + torch.stack(losses).sum() * len(batch)
        return Loss(total, len(batch), figures)

    def _taught(self, heard: "BlockwiseBatch", outputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """For each stage what it is to make [rows, outputs, channels], and which outputs count."""
        every = self.config.frames_per_output
        longest, wanted = -(-heard.features.shape[-1] // every), -(-heard.frames // every)
        spoken = torch.ones(len(outputs), dtype=torch.bool)
        spoken[list(heard.altered.silent)] = False
        taught, inside = [], []
        for made, late in zip(heard.taught, self.part.late, strict=True):
            places, counting = stretched(outputs, wanted, longest, late)
            counting = counting & spoken.to(counting.device)[:, None]
            rows = torch.arange(len(made), device=made.device)[:, None]
            taught.append(made[rows, places].float() / STEPS_PER_DEVIATION * counting[..., None])
            inside.append(counting)
        return taught, inside

    def _given(self, taught: Sequence[Tensor], batch: Batch) -> list[Tensor | None]:
        """What takes the place of what each stage makes, as [rows, channels, outputs]."""
        drawn = torch.Generator().manual_seed(batch.seed)
        chosen = chosen_rows(len(taught), self.part.given_share(batch.step), drawn).tolist()
        return [values.mT if stage in chosen else None for stage, values in enumerate(taught)]


def stretched(heard: Tensor, wanted: Tensor, longest: int, late: int) -> tuple[Tensor, Tensor]:
    """For rows of `wanted` outputs of which the teacher heard `heard`: which of the teacher's belongs to each of
    `longest` outputs that come `late` [rows, longest], and whether any does."""
    index = torch.arange(longest, device=heard.device)[None, :] - late
    wanted = wanted.to(heard.device)[:, None]
    places = ((index + 0.5) * heard[:, None] / wanted.clamp(min=1)).long()
    return places.clamp(min=0).minimum(heard[:, None] - 1), (index >= 0) & (index < wanted - late)


def stage_loss(made: Tensor, taught: Tensor, inside: Tensor, shares: Tensor) -> Tensor:
    """What is amiss of the teacher's outputs, as a share of how much they differ from their mean, each channel by what
    it counts; `taught` is nought wherever nothing counts."""
    count = inside.sum().clamp(min=1)
    differing = taught.square().sum((0, 1)) - taught.sum((0, 1)).square() / count
    amiss = torch.where(inside[..., None], made - taught, 0.0).square().sum((0, 1))
    return (shares * amiss).sum() / (shares * differing).sum().clamp(min=1e-3)


def _channels_and_rate(config: ModelConfig, block: int) -> tuple[int, int]:
    return config.blocks[block].channels, math.prod(before.stride for before in config.blocks[: block + 1])


def _without(plan: AugmentConfig, parts: Iterable[str]) -> AugmentConfig:
    off: dict[str, Any] = dict.fromkeys(parts, 0.0)
    return replace(plan, **off)


def _parts(heard: PreparedBatch) -> dict[str, Any]:
    return {part.name: getattr(heard, part.name) for part in fields(PreparedBatch)}
