"""What comes behind a stage, by itself: the last blocks of a student learn on what the blocks before them make, which
is kept in bytes and no longer changes.

The last stage learns what its teacher's block makes of the *student's* outputs, not of the sound: it can know all of
that. A step costs a fifth of one of the whole network (training/LOG.md, run AB); `scripts/last_blocks.py` runs it.
"""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from acoustic.checkpoint import Checkpoint
from acoustic.features import FrontEnd
from acoustic.network import Network
from acoustic.network.parts import BatchNorm, Masks, by_step, convolved
from training.averages import MovingAverage
from training.data.feed import encode
from training.data.manifests import Clip
from training.data.sound import ClipError, read_clip
from training.distill import words_loss
from training.errors import TrainingError
from training.features import batch_features
from training.finetune import start_from
from training.optimisers import build_optimiser
from training.precision import Precision, quickest
from training.stages import STEPS_PER_DEVIATION, StageTeacher, compile_taps, stage_loss
from training.staging import StagesPart

log = logging.getLogger("silica.training")

CPU = torch.device("cpu")
WARMUP_STEPS = 30
AVERAGE_DECAY = 0.995
TOLD_EVERY = 50


@dataclass(frozen=True)
class Kept:
    """What a stage makes of a clip, in bytes [outputs, channels], and the labels of what is said."""

    made: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Plan:
    """How the last blocks learn: `words` is what a nat a letter counts beside the stage, `seconds` a step's sound."""

    steps: int = 1100
    rate: float = 6e-4
    words: float = 0.3
    seconds: float = 60.0
    seed: int = 0


class Rest(nn.Module):
    """A network's blocks from `first` on, and what they write. They learn, nothing else does, and norms stay as they
    were learnt."""

    def __init__(self, network: Network, first: int, stage: int) -> None:
        super().__init__()
        network.requires_grad_(False)
        self.blocks = network.blocks[first:].requires_grad_(True)
        self.output = network.output.requires_grad_(True)
        self.stage = stage - first
        self.every = network.config.stride_frames
        for norm in self.modules():
            if isinstance(norm, BatchNorm):
                norm.eval()

    def forward(self, x: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
        """What the stage makes of [rows, channels, outputs], and log-probabilities [rows, outputs, classes]."""
        made = x
        for index, block in enumerate(self.blocks):
            x = block([x], masks)
            if index == self.stage:
                made = x
        return made, convolved(masks.apply(x, self.every), self.output).mT.float().log_softmax(-1)


def keep(
    student: Checkpoint,
    block: int,
    clips: Sequence[Clip],
    change: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Kept]:
    """What that block makes of each clip; `change` changes its sound [1, samples] before. Clips without words are
    passed over, and those that cannot be read, which are named."""
    network, front_end = student.network().requires_grad_(False), FrontEnd(student.config.features)
    precision = Precision(quickest(CPU), CPU)
    compile_taps(network)
    for clip in clips:
        labels = encode(clip, student.config.alphabet)
        try:
            sound = torch.from_numpy(read_clip(clip.audio))[None]
        except ClipError as error:
            log.warning("passed over: %s", error)
            continue
        sound = change(sound) if change else sound
        with torch.no_grad(), precision.region():
            features, frames = batch_features(front_end, sound, torch.tensor([sound.shape[1]]))
            masks, x = Masks(frames), by_step(features)
            x = x.bfloat16() if precision.name == "bf16" else x
            for layer in network.blocks[: block + 1]:
                x = layer([x], masks)
        if len(labels) and len(labels) < x.shape[-1]:
            made = (x[0].mT.float() * STEPS_PER_DEVIATION).round().clamp(0, 255).to(torch.uint8)
            yield Kept(made, torch.tensor(labels))


def learn(
    student: Checkpoint,
    teacher: Checkpoint,
    part: StagesPart,
    clips: Sequence[Clip],
    kept: Sequence[Kept],
    plan: Plan,
    tell: Callable[[int, float, float], None] = lambda step, missed, words: None,
) -> Checkpoint:
    """The student with its last blocks trained on; the clips say how the teacher's outputs are scaled."""
    if len(part.by) < 2 or not kept:
        raise TrainingError(
            "The last blocks learn behind a stage: name two stages at least, and clips with words."
        )
    known, wanted = part.of[-2:]
    before, stage = part.by[-2:]
    late, later = part.late[-2:]
    ear = StageTeacher(teacher, (known, wanted), CPU, student.config.features)
    ear.measure(clips)
    blocks = ear.network.blocks[known + 1 : wanted + 1]
    network, _ = start_from(student)
    rest = Rest(network, before + 1, stage)
    optimiser = build_optimiser("muon", rest, rate=plan.rate, betas=(0.9, 0.99), momentum=0.95)
    average = MovingAverage(rest, AVERAGE_DECAY)
    precision = Precision(quickest(CPU), CPU)
    drawn = random.Random(plan.seed)
    batches = _batches(kept, round(plan.seconds * _outputs_a_second(student)), drawn)
    told: list[tuple[float, float]] = []
    for step in range(plan.steps):
        falling = plan.rate * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / plan.steps)
        for group in optimiser.param_groups:
            group["lr"] = falling
        rows = next(batches)
        outputs = torch.tensor([len(row.made) for row in rows])
        made = nn.utils.rnn.pad_sequence([row.made for row in rows], batch_first=True)
        x = by_step((made.float() / STEPS_PER_DEVIATION).mT)
        x = x.bfloat16() if precision.name == "bf16" else x
        masks = Masks(outputs * student.config.stride_frames)
        optimiser.zero_grad(set_to_none=True)
        with precision.region():
            with torch.no_grad():
                taught = x.clone()
                taught[..., :late] = 0  # from before the sound
                taught = taught / ear.scales[0]
                for block in blocks:
                    taught = block([taught], masks)
                aim = (taught.mT.float() * ear.scales[1])[:, : x.shape[-1] - (later - late)]
            own, log_probs = rest(x, masks)
            places = torch.arange(aim.shape[1])[None, :]
            counting = (places >= late) & (places < outputs[:, None] - (later - late))
            missed = stage_loss(
                own.mT.float()[:, later - late :],
                aim * counting[..., None],
                counting,
                torch.ones(aim.shape[-1]),
            )
            lengths = torch.tensor([len(row.labels) for row in rows])
            words = words_loss(
                log_probs, outputs, torch.cat([row.labels for row in rows]), lengths, student.config.blank
            ).mean()
        (missed + plan.words * words).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        average.update(rest)
        told.append((float(missed.detach()), float(words.detach())))
        if len(told) == TOLD_EVERY or step + 1 == plan.steps:
            tell(step + 1, *(sum(values) / len(told) for values in zip(*told, strict=True)))
            told = []
    with average.in_place_of(rest):
        state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    return replace(student, state=state)


def _outputs_a_second(student: Checkpoint) -> float:
    return student.config.frames_per_second / student.config.stride_frames


def _batches(kept: Sequence[Kept], outputs: int, drawn: random.Random) -> Iterator[list[Kept]]:
    """Rows in a new order each time round, so many outputs together; endless."""
    rows: list[Kept] = []
    while True:
        for row in drawn.sample(kept, len(kept)):
            rows.append(row)
            if sum(len(one.made) for one in rows) >= outputs:
                yield rows
                rows = []
