"""The last blocks by themselves, on kept outputs of what comes before."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acoustic.checkpoint import Checkpoint
from acoustic.network import build
from acoustic.shape import ModelConfig
from training.data.manifests import Clip, read_manifest
from training.errors import TrainingError
from training.features import batch_features
from training.finetune import start_from
from training.rest import Plan, Rest, keep, learn
from training.staging import StagesPart

PART = StagesPart("teacher", of=(1, 2), by=(0, 1), late=(1, 3))
PLAN = Plan(steps=60, rate=3e-3, seconds=10.0)


@pytest.fixture(scope="module")
def student(student: ModelConfig) -> Checkpoint:
    torch.manual_seed(6)
    return Checkpoint(student, build(student).eval().state_dict(), {"title": "mini"})


def test_the_last_blocks_come_nearer_and_the_others_stay_as_they_were(
    student: Checkpoint, teacher: Checkpoint, spoken: Path
) -> None:
    clips = read_manifest(spoken)
    kept = list(keep(student, 0, clips))
    told: list[tuple[int, float, float]] = []
    learnt = learn(student, teacher, PART, clips, kept, PLAN, lambda *figures: told.append(figures))
    assert [step for step, _, _ in told] == [50, 60]
    assert told[1][1] < told[0][1] and told[1][2] < told[0][2]
    assert learnt.config == student.config and learnt.card == student.card
    for name, weight in learnt.state.items():
        alike = torch.equal(weight, student.state[name])
        before = name.startswith("blocks.0.")
        statistics = not weight.is_floating_point() or "running" in name
        assert alike if before or statistics else True, name
    assert not torch.equal(learnt.state["output.weight"], student.state["output.weight"])


def test_what_is_learnt_is_the_average(
    student: Checkpoint, teacher: Checkpoint, spoken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = read_manifest(spoken)
    kept = list(keep(student, 0, clips))
    # So slow an average that the weights in it never move; what is no weight is copied, as ever.
    monkeypatch.setattr("training.averages.torch._foreach_lerp_", lambda values, towards, share: None)
    still = learn(student, teacher, PART, clips, kept, replace(PLAN, steps=3))
    for name, weight in still.state.items():
        assert torch.equal(weight, student.state[name]), name


def test_what_is_kept_is_what_the_network_makes(
    student: Checkpoint, spoken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from acoustic.features import FrontEnd
    from acoustic.network.parts import Masks
    from training.data.sound import read_clip

    (clip, *_) = clips = read_manifest(spoken)
    nothing_said = replace(clip, text=None)
    unreadable = replace(clip, audio=spoken / "nowhere.wav")
    first, *others = keep(student, 0, [clip, nothing_said, unreadable])
    (softer,) = keep(student, 0, [clip], lambda sound: sound / 2)
    assert softer.made.shape == first.made.shape and not torch.equal(softer.made, first.made)
    assert not others and len(clips) > 1
    assert "nowhere.wav" in caplog.text
    sound = torch.from_numpy(read_clip(clip.audio))[None]
    features, frames = batch_features(
        FrontEnd(student.config.features), sound, torch.tensor([sound.shape[1]])
    )
    with torch.no_grad():
        network = student.network()
        made = network.blocks[0]([features], Masks(frames))
        _, written = Rest(start_from(student)[0], 1, 1)(first.made.float().mT[None] / 16, Masks(frames))
        expected, _ = network(features, frames)
    assert first.made.dtype == torch.uint8 and first.made.shape == made[0].mT.shape
    assert (first.made.float() / 16 - made[0].mT.clamp(max=255 / 16)).abs().max() < 0.1
    torch.testing.assert_close(written, expected, atol=0.2, rtol=0.1)


def test_without_a_stage_or_words_nothing_is_learnt(
    student: Checkpoint, teacher: Checkpoint, spoken: Path
) -> None:
    clips: list[Clip] = read_manifest(spoken)
    with pytest.raises(TrainingError, match="two stages at least"):
        learn(student, teacher, PART, clips, [], PLAN)
    with pytest.raises(TrainingError, match="two stages at least"):
        learn(student, teacher, StagesPart(), clips, list(keep(student, 0, clips[:1])), PLAN)
