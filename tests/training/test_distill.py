"""The losses of a distillation mean what they say, and a student really learns from a teacher."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acoustic.checkpoint import Checkpoint
from acoustic.config import published
from acoustic.network import build
from training.alteration import NO_ALTERATION, Alteration, FeatureMasks
from training.augment import Altered
from training.data.feed import Batch
from training.data.manifests import Clip
from training.distill import (
    Answer,
    DistilObjective,
    Ramp,
    Stored,
    StoredTeacher,
    Weights,
    agreement_loss,
    character_loss,
    frame_loss,
    labelled_clips,
    nearby_characters,
    silence_loss,
    without,
    words_loss,
)
from training.hidden import STEPS_PER_DEVIATION
from training.labels import HIDDEN_WIDTH, LabelFolder
from training.live import LiveTeacher, greedy_labels

BLANK = 28
CLASSES = 29


def path_of(symbols: list[int], sure: float = 0.99) -> torch.Tensor:
    """Log-probabilities [1, outputs, classes] that write these symbols, one an output."""
    probabilities = torch.full((1, len(symbols), CLASSES), (1 - sure) / (CLASSES - 1))
    for place, symbol in enumerate(symbols):
        probabilities[0, place, symbol] = sure
    return probabilities.log()


def no_change(sound: torch.Tensor, lengths: torch.Tensor) -> Altered:
    return Altered(sound, lengths, lengths.clone())


def test_greedy_labels_leave_out_repeats_blanks_and_padding() -> None:
    log_probs = path_of([3, 3, BLANK, 3, 5, BLANK, 7])
    assert [row.tolist() for row in greedy_labels(log_probs, torch.tensor([6]), BLANK)] == [[3, 3, 5]]


def test_a_character_reaches_160_ms() -> None:
    log_probs = path_of([BLANK] * 10 + [4] + [BLANK] * 20 + [9] + [BLANK] * 3)
    wanted = nearby_characters(log_probs, torch.tensor([33]), BLANK)[0].tolist()
    assert wanted[:2] == [-1, -1] and wanted[2:19] == [4] * 17
    assert wanted[19:23] == [-1] * 4 and wanted[23:33] == [9] * 10
    assert wanted[33:] == [-1, -1], "beyond the row's end nothing is wanted"


def test_losses_are_nothing_when_the_student_is_the_teacher() -> None:
    teacher = path_of([3, BLANK, 5, BLANK], sure=1 - 1e-6)
    answer = Answer(teacher, torch.tensor([4]), (None,))
    assert float(frame_loss(teacher, answer)) < 1e-4
    other = path_of([5, BLANK, 3, BLANK])
    assert float(frame_loss(other, answer)) > 1
    assert float(character_loss(other, answer, BLANK)) > float(character_loss(teacher, answer, BLANK))


def test_rows_without_words_or_answer_count_nothing() -> None:
    log_probs = path_of([3, BLANK, 5, BLANK]).repeat(2, 1, 1).requires_grad_()
    answer = Answer(log_probs.detach(), torch.tensor([0, 4]), (None, None))
    words = words_loss(log_probs, torch.tensor([4, 4]), torch.tensor([3, 5]), torch.tensor([0, 2]), BLANK)
    assert words.detach()[0] == 0 and words.detach()[1] > 0
    assert frame_loss(log_probs.detach(), answer)[0] == 0
    assert character_loss(log_probs.detach(), answer, BLANK)[0] == 0
    words.sum().backward()
    assert log_probs.grad is not None and torch.isfinite(log_probs.grad).all()


def test_a_stored_answer_follows_the_speed(tmp_path: Path) -> None:
    with LabelFolder(tmp_path, CLASSES) as labels:
        labels.append("a.opus", "c e", path_of([3] * 40 + [5] * 40)[0].numpy())
    teacher = StoredTeacher({"/x/a.opus": Stored(labels, "a.opus")}, CLASSES)
    batch = Batch(
        torch.zeros(2, 32000),
        torch.tensor([25600, 25600]),
        torch.tensor([3]),
        torch.tensor([1, 0]),
        ("/x/a.opus", "b"),
        0,
    )
    fast = Altered(torch.zeros(2, 12800), torch.tensor([12800, 12800]), torch.tensor([12800, 12800]))
    answer = teacher.answer(batch, fast, 50)
    assert answer.outputs.tolist() == [40, 0]
    assert answer.log_probs[0, :40].argmax(-1).tolist() == [3] * 20 + [5] * 20


def test_a_hidden_layer_counts_where_the_words_do_not_agree_and_not_where_nothing_is_said(
    tmp_path: Path,
) -> None:
    rows = np.repeat(np.arange(80, dtype=np.int8)[:, None], HIDDEN_WIDTH, 1)
    with LabelFolder(tmp_path, CLASSES, "abc") as labels:
        for name in ("a", "b", "c"):
            labels.append(name, "c e", path_of([3] * 40 + [5] * 40)[0].numpy(), rows)
    answers = {"/a": Stored(labels, "a"), "/b": Stored(labels, "b", agrees=False), "/c": Stored(labels, "c")}
    lengths = torch.tensor([25600] * 4)
    targets = (torch.tensor([3]), torch.tensor([1, 0, 0, 0]))
    batch = Batch(torch.zeros(4, 32000), lengths, *targets, ("/a", "/b", "/c", "/d"), 0)
    fast = Altered(torch.zeros(4, 12800), lengths // 2, lengths // 2)
    answer = without(StoredTeacher(answers, CLASSES, hidden=True).answer(batch, fast, 50), (2,))
    assert answer.hidden is not None and answer.hidden_outputs is not None
    assert answer.outputs.tolist() == [40, 0, 0, 0] and answer.hidden_outputs.tolist() == [40, 40, 0, 0]
    assert answer.hidden[1, :40].mul(STEPS_PER_DEVIATION).round().tolist() == [
        [place] * HIDDEN_WIDTH for place in range(1, 80, 2)
    ]


def test_where_nothing_is_said_nothing_is_to_be_written(tmp_path: Path) -> None:
    quiet, talking = path_of([BLANK] * 20), path_of([3] * 20)
    outputs = torch.tensor([20, 20])
    both = torch.cat([quiet, talking])
    losses = silence_loss(both, outputs, (0, 1), BLANK)
    assert float(losses[0]) == pytest.approx(0.01, abs=0.002) and float(losses[1]) > 7
    assert (
        silence_loss(both, outputs, (1,), BLANK)[0] == 0 and not silence_loss(both, outputs, (), BLANK).any()
    )
    teacher = Answer(both, outputs, (None, None))
    assert without(teacher, (1,)).outputs.tolist() == [20, 0] and without(teacher, ()).outputs.tolist() == [
        20,
        20,
    ]
    objective = DistilObjective(
        published["tiny"],
        torch.device("cpu"),
        StoredTeacher({}, CLASSES),
        alteration=replace(NO_ALTERATION, nothing=1.0),
        ramp=Ramp(1.0, 1),
    )
    student = build(published["tiny"]).train()
    sound = torch.randn(2, 16000, generator=torch.Generator().manual_seed(1))
    lengths = torch.full((2,), 16000)
    batch = Batch(sound, lengths, torch.tensor([3, 4]), torch.tensor([1, 1]), ("a", "b"), 1)
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-2)
    losses_seen = []
    for _ in range(12):
        loss = objective(student, objective.hear(batch))
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        losses_seen.append(float(loss.total.detach()))
    assert losses_seen[-1] < 0.3 * losses_seen[0]


def test_two_views_are_altered_by_themselves_and_learn_to_write_the_same() -> None:
    objective = DistilObjective(
        published["tiny"],
        torch.device("cpu"),
        StoredTeacher({}, CLASSES),
        weights=Weights(words=0.0, frames=0.0, characters=0.0, agree=1.0),
        alteration=replace(NO_ALTERATION, speed=1.0),
        masks=FeatureMasks(mel_masks=2, mel_bins=8, stretch=(0.9, 1.1), colour=0.3),
    )
    student = build(published["tiny"]).train()
    sound = torch.randn(2, 16000, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([16000, 12000])
    batch = Batch(sound, lengths, torch.tensor([3, 4, 5]), torch.tensor([2, 1]), ("a", "b"), 1)
    heard = objective.vary(objective.hear(batch), 1)
    assert len(heard.batch) == len(heard.features) == 4 and heard.batch.names == ("a", "b", "a", "b")
    assert heard.frames.tolist() == heard.frames[:2].tolist() * 2
    assert not torch.equal(heard.features[:2], heard.features[2:])
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-2)
    seen = []
    for _ in range(12):
        loss = objective(student, heard)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        seen.append(float(loss.figures["agree"].detach()))
    assert loss.rows == 4 and 0 < seen[-1] < 0.3 * seen[0]


def test_each_view_is_asked_for_what_the_other_says_within_its_outputs() -> None:
    sure, unsure = path_of([3, BLANK, 5, BLANK]), path_of([5, BLANK, 5, BLANK], sure=0.5)
    views = torch.cat([sure, sure, unsure, sure]).requires_grad_()
    apart = agreement_loss(views, torch.tensor([4, 4, 4, 4]), torch.tensor([2, 0, 2, 0]))
    expected = [(other.exp() * (other - own)).sum() / 2 for own, other in ((sure, unsure), (unsure, sure))]
    assert apart.tolist() == pytest.approx([float(expected[0]), 0.0, float(expected[1]), 0.0])
    apart[0].backward()
    assert views.grad is not None and views.grad[0].any() and not views.grad[2].any()
    shorter = agreement_loss(views.detach(), torch.tensor([1, 4, 1, 4]), torch.tensor([2, 0, 2, 0]))
    assert 0 < float(shorter[0]) < float(expected[0])


def test_clips_get_the_text_they_are_to_teach(tmp_path: Path) -> None:
    with LabelFolder(tmp_path / "labels", CLASSES) as labels:
        for name, words in {"right": "so it is", "wrong": "something else", "mute": ""}.items():
            labels.append(f"{name}.opus", words, path_of([3, BLANK])[0].numpy())
    clips = [
        Clip(tmp_path / "right.opus", 1.0, "so it is"),
        Clip(tmp_path / "wrong.opus", 1.0, "so it is"),
        Clip(tmp_path / "mute.opus", 1.0, None),
        Clip(tmp_path / "unlabelled.opus", 1.0, "known"),
        Clip(tmp_path / "nothing.opus", 1.0, None),
    ]
    labelled = labelled_clips(clips, tmp_path, labels)
    assert [clip.audio.stem for clip in labelled.clips] == ["right", "wrong", "unlabelled"]
    assert {Path(name).stem: stored.agrees for name, stored in labelled.answers.items()} == {
        "right": True,
        "wrong": False,
    }


def test_a_student_learns_what_its_live_teacher_writes() -> None:
    torch.manual_seed(3)
    config = published["tiny"]
    teacher_net = build(config).eval()
    teacher = LiveTeacher(Checkpoint(config, teacher_net.state_dict()), torch.device("cpu"))
    objective = DistilObjective(
        config,
        torch.device("cpu"),
        teacher,
        weights=Weights(0.0, 1.0, 0.0),
        alteration=Alteration(splice=0.0),
    )
    student = build(config).train()
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-2)
    sound = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 16000)).astype(np.float32) * 0.1)
    lengths = torch.full((4,), 16000)
    losses = []
    for step in range(40):
        batch = Batch(
            sound,
            lengths,
            torch.zeros(0, dtype=torch.long),
            torch.zeros(4, dtype=torch.long),
            ("",) * 4,
            step,
            step,
        )
        loss = objective(student, objective.hear(batch))
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        losses.append(float(loss.total.detach()))
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_a_recipe_with_labels_distils(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From manifest and labels through the loop: the stored answers arrive at the objective."""
    import json

    import soundfile

    from training.assemble import assemble
    from training.recipe import from_values

    sound = np.random.default_rng(1).normal(size=16000).astype(np.float32) * 0.1
    (tmp_path / "clips").mkdir()
    with LabelFolder(tmp_path / "labels" / "clips", CLASSES) as labels:
        lines = []
        for number in range(4):
            soundfile.write(tmp_path / "clips" / f"{number}.wav", sound, 16000)
            lines.append(json.dumps({"audio": f"{number}.wav", "duration": 1.0, "text": None}))
            labels.append(f"{number}.wav", "so it is", path_of([19, BLANK] * 25)[0].numpy())
    (tmp_path / "clips" / "manifest.jsonl").write_text("\n".join(lines))
    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise" / "hum.wav", sound, 16000)
    (tmp_path / "noise" / "manifest.jsonl").write_text(
        json.dumps({"audio": "hum.wav", "kind": "fan", "split": "train"})
    )
    recipe = from_values(
        {
            "title": "test",
            "model": {"name": "tiny"},
            "data": {"train": ["clips"], "noise": "noise", "batch_seconds": 2.0},
            "distil": {"labels": "labels"},
            "augment": {"noise": 1.0, "speed": 1.0},
            "optimiser": {"name": "adamw", "rate": 0.01},
            "schedule": {"steps": 6},
            "run": {"log_every": 2},
        },
        "test",
    )
    loop = assemble(recipe, tmp_path / "run", data=tmp_path, live=False)
    progress = loop.run()
    assert progress.finished and progress.skipped == 0
    assert "characters" in capsys.readouterr().err, "the log names the losses of the distillation"
