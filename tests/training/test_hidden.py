"""A teacher's hidden layer: heard, kept in few directions, and read off the student."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acoustic import checkpoint
from acoustic.checkpoint import Checkpoint
from acoustic.config import attentive
from acoustic.errors import AcousticError
from acoustic.features import FrontEnd
from acoustic.network import build
from acoustic.runtime.backend import open_backend
from acoustic.shape import ModelConfig
from service.commands import main
from training.assemble import assemble
from training.augment import Altered
from training.data.feed import Batch
from training.data.sound import read_clip
from training.ear import Ear
from training.errors import TrainingError
from training.features import batch_features
from training.hidden import (
    HEAD,
    Basis,
    attach_head,
    deviations,
    found_basis,
    head_of,
    hidden_loss,
    known_basis,
    without_head,
)
from training.labels import HIDDEN_WIDTH
from training.live import LiveTeacher
from training.optimisers import build_optimiser
from training.recipe import from_values
from training.release import trained_model


@pytest.fixture(scope="module")
def teacher(small_network: ModelConfig) -> Checkpoint:
    torch.manual_seed(5)
    network = build(small_network).eval()
    return Checkpoint(small_network, network.state_dict())


@pytest.fixture(scope="module")
def student() -> ModelConfig:
    return attentive("mini", 64, 2)


def test_the_ear_hears_what_the_network_makes_of_a_clip(teacher: Checkpoint, spoken: Path) -> None:
    sound = read_clip(spoken / "2.wav")
    log_probs, hidden = Ear(teacher, 1).hear(sound)
    assert np.allclose(log_probs, open_backend(teacher).whole(sound), atol=1e-5)
    network = teacher.network()
    made: list[torch.Tensor] = []
    network.blocks[1].register_forward_hook(lambda module, inputs, output: made.append(output))
    with torch.no_grad():
        samples = torch.from_numpy(sound)[None]
        network(*batch_features(FrontEnd(teacher.config.features), samples, torch.tensor([len(sound)])))
    assert hidden.shape == (len(log_probs), 96) and np.allclose(hidden, made[0][0].T, atol=1e-4)


def test_a_block_that_is_not_there_or_makes_other_steps_is_named(
    teacher: Checkpoint, student: ModelConfig
) -> None:
    with pytest.raises(AcousticError, match="small has no block 9: they are numbered 0 to 3"):
        Ear(teacher, 9)
    with pytest.raises(TrainingError, match="mini carries state"):
        Ear(Checkpoint(student, build(student).state_dict()), 1)
    wide = replace(teacher.config.blocks[0], stride=1)
    late = replace(teacher.config, blocks=(wide, replace(wide, stride=2), *teacher.config.blocks[1:]))
    with pytest.raises(TrainingError, match="makes 100 steps where the network has 50 outputs"):
        Ear(Checkpoint(late, build(late).state_dict()), 0).hear(np.zeros(16000, np.float32))


def test_what_is_kept_tells_nearly_all_where_few_directions_matter(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    mixing = draw.normal(size=(HIDDEN_WIDTH, 200)) * np.linspace(3.0, 0.5, HIDDEN_WIDTH)[:, None]
    rows = (draw.normal(size=(4000, HIDDEN_WIDTH)) @ mixing + 7).astype(np.float32)
    basis = Basis.of("block 3", [rows[:2000], rows[2000:]])
    kept = basis.bytes_of(rows)
    assert kept.dtype == np.int8 and kept.shape == (4000, HIDDEN_WIDTH)
    assert np.square(deviations(kept)).mean() == pytest.approx(1.0, rel=0.05)
    spread = deviations(kept).std(0)
    assert spread[0] > 1.2 * spread[-1], "wider directions count for more"
    back = np.linalg.lstsq(np.c_[deviations(kept), np.ones(4000)], rows, rcond=None)[0]
    amiss = rows - np.c_[deviations(kept), np.ones(4000)] @ back
    assert amiss.std() < 0.05 * rows.std()

    assert known_basis(tmp_path) is None
    first = basis.keep(tmp_path)
    later = Basis.of("block 3", [rows[::2] * 2]).keep(tmp_path)
    assert np.array_equal(first.directions, later.directions), "the first labeller's stands"
    assert later.name == first.name != Basis.of("block 3", [rows[::2] * 2]).name
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: b"half", lambda whole: whole[:-30]])
def test_a_basis_that_cannot_be_read_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    draw = np.random.default_rng(4)
    Basis.of("block 3", [draw.normal(size=(700, HIDDEN_WIDTH)).astype(np.float32)]).keep(tmp_path)
    path = tmp_path / "hidden.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TrainingError, match=r"hidden.npz cannot be read .* label into another folder"):
        known_basis(tmp_path)
    path.unlink()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TrainingError, match=r"hidden.npz cannot be written \(File exists\)"):
        Basis.of("block 3", [draw.normal(size=(700, HIDDEN_WIDTH)).astype(np.float32)]).keep(
            tmp_path / "file"
        )


def test_too_little_speech_for_so_many_directions_is_said(teacher: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="are too little to find 64 directions"):
        found_basis(Ear(teacher, 1), [])


def test_the_loss_asks_for_the_teachers_row_some_outputs_later() -> None:
    wanted = torch.randn(2, 20, HIDDEN_WIDTH, generator=torch.Generator().manual_seed(2))
    said = torch.cat([torch.full((2, 8, HIDDEN_WIDTH), 9.0), wanted[:, :12]], 1)
    assert hidden_loss(said, wanted, torch.tensor([20, 20]), 8).tolist() == [0.0, 0.0]
    said[0, 15:] = 9.0
    assert hidden_loss(said, wanted, torch.tensor([15, 0]), 8).tolist() == [0.0, 0.0], (
        "beyond its end nothing counts"
    )
    nothing = hidden_loss(torch.zeros(2, 20, HIDDEN_WIDTH), wanted, torch.tensor([20, 5]), 8)
    assert float(nothing[0]) == pytest.approx(1.0, abs=0.2) and float(nothing[1]) == 0.0


def test_a_head_hears_in_training_alone_and_is_nobodys_weights_afterwards(student: ModelConfig) -> None:
    network = build(student)
    own = set(network.state_dict())
    for layer in (0, 2):
        with pytest.raises(TrainingError, match=rf"hidden_layer is {layer}: .* \(1 to 1\)"):
            attach_head(network, layer)
    with pytest.raises(TrainingError, match="attending layers"):
        attach_head(build(replace(student, blocks=student.blocks[:-1])), 1)
    attach_head(network, 1)
    assert set(without_head(network.state_dict())) == own < set(network.state_dict())
    features = torch.randn(2, 64, 160)
    network.eval()(features)
    assert head_of(network).said is None
    network.train()(features)
    said = head_of(network).said
    assert said is not None and said.shape == (2, 80, HIDDEN_WIDTH)
    muon = build_optimiser("muon", network, rate=0.01)
    matrices, others = ({id(weight) for weight in group["params"]} for group in muon.param_groups)
    head = dict(network.named_parameters())[f"{HEAD}.read.weight"]
    assert id(head) in others and id(network.output.weight) in others
    assert id(network.blocks[-1].layers[0][2].wider.weight) in matrices


@pytest.fixture
def values(teacher: Checkpoint, student: ModelConfig, spoken: Path, tmp_path: Path) -> dict[str, Any]:
    """Of a recipe whose student learns a hidden layer; whose teacher's answers, a test says in `distil`."""
    checkpoint.save(tmp_path / "teacher.safetensors", teacher.config, teacher.state, {})
    torch.manual_seed(1)
    checkpoint.save(tmp_path / "start.safetensors", student, build(student).state_dict(), {})
    return {
        "title": "test",
        "model": {"start": str(tmp_path / "start.safetensors")},
        "data": {"train": [str(spoken)], "batch_seconds": 20.0},
        "distil": {"words": 0.1, "frames": 0.0, "characters": 0.0,
                   "hidden": 3.0, "hidden_layer": 1, "hidden_late": 1},
        "augment": {"speed": 1.0},
        "optimiser": {"name": "muon", "rate": 0.01},
        "schedule": {"steps": 30},
        "run": {"log_every": 10},
    }  # fmt: skip


def falls(told: str) -> bool:
    """Whether a run's log has the hidden layer's figure fall by a fifth."""
    figures = [float(part.split()[1]) for part in told.split(" · ") if part.startswith("hidden ")]
    return figures[-1] < 0.8 * figures[0]


def test_labelled_with_a_hidden_layer_a_student_learns_it(
    values: dict[str, Any], spoken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label = ["label", str(spoken), "--teacher", str(tmp_path / "teacher.safetensors"), "--hidden", "1"]
    values["distil"]["labels"] = "labels"
    recipe = from_values(values, "test")
    with pytest.raises(TrainingError, match=r"`silica label --hidden BLOCK` kept, and .*labels holds none"):
        assemble(recipe, tmp_path / "run", data=tmp_path, live=False)
    assert main([*label, "--out", str(tmp_path / "labels"), "--without-text"]) == 2
    assert "leave out --without-text or --hidden" in capsys.readouterr().err
    assert main([*label, "--out", str(tmp_path / "labels")]) == 0
    folder = tmp_path / "labels" / spoken.name
    (stored,) = folder.glob("hidden-*.i8")
    kept = {file.name: file.read_bytes() for file in (stored, folder / "labels.jsonl")}
    assert main([*label, "--out", str(tmp_path / "labels")]) == 0
    assert kept == {name: (folder / name).read_bytes() for name in kept}, (
        "there already: nothing is done again"
    )
    outputs = sum(json.loads(line)["outputs"] for line in kept["labels.jsonl"].splitlines())
    assert len(kept[stored.name]) == outputs * HIDDEN_WIDTH
    label[-1] = "2"
    assert main([*label, "--out", str(tmp_path / "labels")]) == 2
    assert "was begun with block 1 of small" in capsys.readouterr().err
    capsys.readouterr()
    assert assemble(recipe, tmp_path / "run", data=tmp_path, live=False).run().finished
    assert falls(capsys.readouterr().err)
    assert not [name for name in trained_model(tmp_path / "run").state if name.startswith(HEAD)]
    again = assemble(recipe, tmp_path / "run", data=tmp_path, live=False)
    assert again.progress.step == 30, "a run with a head is continued"
    with pytest.raises(TrainingError, match=r"or distil\.hidden differ"):
        assemble(
            from_values(values | {"distil": {"labels": "labels"}}, "test"), tmp_path / "run", data=tmp_path
        )
    values["data"]["train"] = [str(tmp_path / "others")]
    (tmp_path / "others").mkdir()
    row = {"audio": str(spoken / "1.wav"), "duration": 1.2, "text": "open the door"}
    (tmp_path / "others" / "manifest.jsonl").write_text(json.dumps(row))
    with pytest.raises(TrainingError, match="no clip of this recipe is labelled"):
        assemble(from_values(values, "test"), tmp_path / "new", data=tmp_path)
    for distil in (
        {"hidden": 1.0, "teacher": "tiny"},
        {"hidden": 1.0, "labels": "labels", "hidden_block": 15},
    ):
        with pytest.raises(TrainingError, match=r"where distil\.teacher and distil\.hidden are set"):
            from_values(values | {"distil": distil}, "test")


def test_a_live_teacher_hears_in_altered_sound_what_its_ear_hears_in_the_clip(
    teacher: Checkpoint, spoken: Path
) -> None:
    clip = spoken / "2.wav"
    live, ear = LiveTeacher(teacher, torch.device("cpu"), 1), Ear(teacher, 1)
    sound = read_clip(clip)
    assert np.allclose(live.hear(sound)[1], ear.hear(sound)[1], atol=1e-4)
    draw = np.random.default_rng(4)
    basis = Basis.of("block 1", [ear.hear(sound)[1], draw.normal(size=(700, 96)).astype(np.float32)])
    live.learn(basis)
    short = len(sound) // 2
    rows = torch.from_numpy(np.stack([sound, sound]))
    rows[1, short:] = 0
    lengths = torch.tensor([len(sound), short])
    batch = Batch(rows, lengths, torch.zeros(0), torch.zeros(2), ("a", "b"), 0)
    heard = len(ear.hear(sound)[1])
    answer = live.answer(batch, Altered(rows, lengths, lengths), heard + 3)
    assert answer.hidden is not None and answer.hidden_outputs is not None
    assert answer.hidden.shape == (2, heard + 3, HIDDEN_WIDTH)
    assert answer.hidden_outputs.tolist() == [heard, len(ear.hear(sound[:short])[1])]
    stored = deviations(basis.bytes_of(ear.hear(sound)[1]))
    inside = np.abs(stored).max(1) < 10  # beyond that a byte ends
    assert inside.any() and np.allclose(answer.hidden[0, :heard][inside], stored[inside], atol=0.06)


def test_a_student_learns_the_hidden_layer_of_a_teacher_that_answers_on_the_spot(
    values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values["distil"] |= {"teacher": str(tmp_path / "teacher.safetensors"), "hidden_block": 1}
    values["model"]["skip"], values["augment"]["splice"] = 0.05, 0.5
    loop = assemble(from_values(values, "test"), tmp_path / "run", data=tmp_path, live=False)
    assert loop.run().finished
    assert falls(capsys.readouterr().err)
    basis = known_basis(tmp_path / "run")
    assert basis is not None and basis.hears.startswith("block 1 of small")
    assert assemble(from_values(values, "test"), tmp_path / "run", data=tmp_path).progress.step == 30
    for block, complaint in ((2, "was begun with block 1 of small"), (9, "are numbered 0 to 3")):
        values["distil"]["hidden_block"] = block
        with pytest.raises(TrainingError, match=complaint):
            assemble(from_values(values, "test"), tmp_path / "run", data=tmp_path)
