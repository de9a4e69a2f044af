"""Stage by stage: what the teacher's blocks make, given to and learnt by a student's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acoustic import checkpoint
from acoustic.architectures import FIXED
from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.features.front_end import FrontEnd
from acoustic.network import build
from training.augment.config import NO_AUGMENT, NO_SPEC_AUGMENT
from training.data.audio import read_clip
from training.data.features import batch_features
from training.data.manifests import read_manifest
from training.distillation.blockwise import (
    MIN_SHARE,
    STAGES,
    STEPS_PER_DEVIATION,
    BlockwiseObjective,
    BlockwiseTeacher,
    Stages,
    attach_stages,
    heard_like,
    stage_loss,
    stretched,
)
from training.distillation.blockwise_settings import BlockwiseConfig
from training.errors import TrainingError
from training.recipe import parse_recipe
from training.run.build import assemble
from training.run.loop import Progress

CPU = torch.device("cpu")
PART = BlockwiseConfig("teacher", teacher_blocks=(1, 2), student_blocks=(0, 1), delay_outputs=(1, 3))


def test_the_teachers_blocks_are_kept_in_bytes_of_like_deviation(teacher: Checkpoint, spoken: Path) -> None:
    clips = read_manifest(spoken)
    ear = BlockwiseTeacher(teacher, (1, 2), CPU)
    ear.measure(clips)
    sound = torch.from_numpy(read_clip(clips[2].audio))[None]
    heard = ear.hear(sound, torch.tensor([sound.shape[1]]))
    network = teacher.network()
    made: list[torch.Tensor] = []
    for block in (1, 2):
        network.blocks[block].register_forward_hook(lambda module, inputs, output: made.append(output))
    with torch.no_grad():
        features = batch_features(FrontEnd(teacher.config.features), sound, torch.tensor([sound.shape[1]]))
        network(*features)
    for kept, exact, scale in zip(heard, made, ear.scales, strict=True):
        values = kept.float() / STEPS_PER_DEVIATION
        assert kept.dtype == torch.uint8 and values.shape == exact.mT.shape
        # Half a step of rounding, and 16 bits where this machine computes in them.
        assert (values - exact.mT * scale).abs().max() < 0.5 / STEPS_PER_DEVIATION + 0.1
        assert values.std() == pytest.approx(1.0, rel=0.3)


def test_what_is_stretched_and_late_finds_its_place() -> None:
    places, inside = stretched(torch.tensor([4, 8]), torch.tensor([8, 8]), 9, 2)
    assert places[0, 2:8].tolist() == [0, 0, 1, 1, 2, 2] and places[1, 2:8].tolist() == [0, 1, 2, 3, 4, 5]
    assert inside.tolist() == [[False] * 2 + [True] * 6 + [False]] * 2


def test_knowing_only_the_mean_is_a_loss_of_one() -> None:
    inside = torch.ones(2, 30, dtype=torch.bool)
    inside[1, 20:] = False
    taught = torch.randn(2, 30, 5) * inside[..., None]
    mean, shares = taught.sum((0, 1)) / inside.sum(), torch.tensor([0.0, 2.0, 0.5, 1.5, 1.0])
    assert float(stage_loss(mean.expand_as(taught), taught, inside, shares)) == pytest.approx(1.0, abs=1e-5)
    spoilt = torch.where(inside[..., None], taught, 100.0)
    spoilt[..., 0] = 7.0  # a channel that does not count
    assert float(stage_loss(spoilt, taught, inside, shares)) == 0.0


def test_channels_that_nothing_hears_count_least(teacher: Checkpoint, spoken: Path) -> None:
    state = {name: value.clone() for name, value in teacher.state.items()}
    deaf = {name: value for name, value in state.items() if name.startswith("blocks.3") and value.ndim == 3}
    for value in deaf.values():
        if value.shape[1] > 1:
            value[:, :10] = 0.0  # block 3 hears nothing of the first ten channels of block 2
    ear = BlockwiseTeacher(Checkpoint(teacher.config, state), (1, 2), CPU)
    ear.measure(read_manifest(spoken))
    assert float(ear.shares[1].mean()) == pytest.approx(1.0, abs=1e-4)
    assert float(ear.shares[1][:10].max()) == pytest.approx(MIN_SHARE, abs=1e-4)
    assert float(ear.shares[1][10:].max()) > 1.0 and float(ear.shares[0].min()) > MIN_SHARE


def test_what_is_given_takes_the_place_of_what_is_made_in_training_only(student: ModelConfig) -> None:
    torch.manual_seed(1)
    network = build(student)
    attach_stages(network, (0, 1))
    stages: Stages = getattr(network, STAGES)
    features = torch.randn(2, 64, 60)
    given = torch.rand(2, 96, 30)
    network.eval()
    with torch.no_grad():
        plain = network.logits(features)
        with stages.giving([given, given]):
            assert torch.equal(network.logits(features), plain) and not stages.made
    network.train()
    with stages.giving([None, given]):
        one = network.logits(features)
        assert len(stages.made) == 2
        first = stages.made[0]
    with stages.giving([given, given]):
        other = network.logits(torch.randn(2, 64, 60))
        assert torch.equal(one, other) and not torch.equal(stages.made[0], first)
    with stages.giving([None, None]):
        assert not torch.equal(network.logits(features), one)


def test_stages_that_do_not_fit_are_named(teacher: Checkpoint, student: ModelConfig) -> None:
    with pytest.raises(TrainingError, match="one of each for every stage"):
        BlockwiseConfig("teacher", teacher_blocks=(1, 2), student_blocks=(0,), delay_outputs=(0, 0))
    with pytest.raises(TrainingError, match="none twice"):
        BlockwiseConfig("teacher", teacher_blocks=(2, 1), student_blocks=(0, 1), delay_outputs=(0, 0))
    with pytest.raises(TrainingError, match="a later stage cannot be less late"):
        BlockwiseConfig("teacher", teacher_blocks=(1, 2), student_blocks=(0, 1), delay_outputs=(2, 1))
    with pytest.raises(TrainingError, match="of small are numbered 0 to 3"):
        BlockwiseTeacher(teacher, (1, 9), CPU)
    with pytest.raises(TrainingError, match="expected blocks of the student, 0 to 1"):
        Stages(build(student), (0, 2))
    narrow = replace(
        student, blocks=(student.blocks[0], replace(student.blocks[1], channels=80), student.blocks[2])
    )
    ear = BlockwiseTeacher(teacher, (1, 2), CPU)
    with pytest.raises(
        TrainingError, match=r"Block 1 of mini cannot learn block 2 of small: .* 96 .* this 80"
    ):
        BlockwiseObjective(
            config=narrow,
            device=CPU,
            teacher=ear,
            part=PART,
            alteration=NO_AUGMENT,
            banks=None,
            masks=NO_SPEC_AUGMENT,
        )


def test_a_teacher_hears_what_its_student_can_know_of_loudness(teacher: Checkpoint) -> None:
    causal = replace(FIXED, normalize="causal", prior_frames=7, deviation_floor=0.5)
    like = heard_like(teacher.config.features, causal)
    assert (like.normalize, like.prior_frames, like.mean) == ("causal", 7, FIXED.mean)
    assert like.deviation_floor == teacher.config.features.deviation_floor
    for other in (None, FIXED, replace(causal, mels=40, mean=(0.0,) * 40, deviation=(1.0,) * 40)):
        assert heard_like(teacher.config.features, other) == teacher.config.features


def test_less_and_less_is_given() -> None:
    part = replace(PART, teacher_input_steps=100, student_input_steps=200)
    assert [part.teacher_input_share(step) for step in (0, 99, 150, 200, 5000)] == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_a_student_learns_its_stages_and_goes_on_after_a_stop(
    teacher: Checkpoint, student: ModelConfig, spoken: Path, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path / "teacher.safetensors", teacher.config, teacher.state)
    checkpoint.save(tmp_path / "mini.safetensors", student, build(student).state_dict())
    values: dict[str, Any] = {
        "title": "stages",
        "model": {"start": str(tmp_path / "mini.safetensors")},
        "data": {"train": [str(spoken)], "batch_duration_s": 12.0, "threads": 1},
        "blockwise": {
            "teacher": str(tmp_path / "teacher.safetensors"),
            "teacher_blocks": [1, 2],
            "student_blocks": [0, 1],
            "delay_outputs": [1, 3],
            "teacher_input_steps": 20,
            "student_input_steps": 30,
        },
        "augment": {"speed": 1.0, "noise": 0.5, "silence": 0.1},
        "optimizer": {"name": "adamw", "learning_rate": 0.004},
        "schedule": {"steps": 40, "decay": "linear"},
        "run": {"evaluate_every": 0, "log_every": 10},
    }

    def train(steps: int) -> tuple[Progress, dict[str, torch.Tensor]]:
        values["run"]["save_every_s"] = 0.0
        loop = assemble(parse_recipe(values, "test"), tmp_path / "run", live=False)
        if steps:
            loop.settings = replace(loop.settings, stop_after_s=0.0)
        progress = loop.run()
        return progress, dict(loop.model.state_dict())

    stopped, _ = train(1)
    assert stopped.step < 40
    progress, state = train(0)
    assert progress.finished and not any(STAGES in name for name in state)
    assert progress.losses[-1] < 0.8 * progress.losses[0]
