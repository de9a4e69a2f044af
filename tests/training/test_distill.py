"""CTC per character of transcripts and pseudo-labels, and blanks only where nothing is said."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from acoustic.architectures import published
from acoustic.network import build
from training.augment.config import NO_AUGMENT
from training.data.loader import Batch
from training.data.manifests import Clip
from training.distillation.objective import (
    PseudoLabelObjective,
    blank_loss,
    ctc_per_character,
    labelled_clips,
)
from training.distillation.pseudo_labels import LabelFolder
from training.recipe import parse_recipe
from training.run.build import assemble

BLANK = 28
CLASSES = 29


def path_of(symbols: list[int], sure: float = 0.99) -> torch.Tensor:
    """Log-probabilities [1, outputs, classes] that write these symbols, one an output."""
    probabilities = torch.full((1, len(symbols), CLASSES), (1 - sure) / (CLASSES - 1))
    for place, symbol in enumerate(symbols):
        probabilities[0, place, symbol] = sure
    return probabilities.log()


def test_rows_without_words_count_nothing() -> None:
    log_probs = path_of([3, BLANK, 5, BLANK]).repeat(2, 1, 1).requires_grad_()
    words = ctc_per_character(
        log_probs, torch.tensor([4, 4]), torch.tensor([3, 5]), torch.tensor([0, 2]), BLANK
    )
    assert words.detach()[0] == 0 and words.detach()[1] > 0
    words.sum().backward()
    assert log_probs.grad is not None and torch.isfinite(log_probs.grad).all()


def test_where_nothing_is_said_nothing_is_to_be_written() -> None:
    quiet, talking = path_of([BLANK] * 20), path_of([3] * 20)
    outputs = torch.tensor([20, 20])
    both = torch.cat([quiet, talking])
    losses = blank_loss(both, outputs, (0, 1), BLANK)
    assert float(losses[0]) == pytest.approx(0.01, abs=0.002) and float(losses[1]) > 7
    assert blank_loss(both, outputs, (1,), BLANK)[0] == 0 and not blank_loss(both, outputs, (), BLANK).any()
    objective = PseudoLabelObjective(
        published["tiny"],
        torch.device("cpu"),
        alteration=replace(NO_AUGMENT, silence=1.0),
    )
    student = build(published["tiny"]).train()
    sound = torch.randn(2, 16000, generator=torch.Generator().manual_seed(1))
    lengths = torch.full((2,), 16000)
    batch = Batch(sound, lengths, torch.tensor([3, 4]), torch.tensor([1, 1]), ("a", "b"), 1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    losses_seen = []
    for _ in range(12):
        loss = objective(student, objective.hear(batch))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        losses_seen.append(float(loss.total.detach()))
    assert losses_seen[-1] < 0.3 * losses_seen[0]


def test_clips_get_the_text_they_are_to_teach(tmp_path: Path) -> None:
    with LabelFolder(tmp_path / "labels") as labels:
        for name, words in {"both": "something else", "recognized": "so it is", "mute": ""}.items():
            labels.append(f"{name}.opus", words)
    clips = [
        Clip(tmp_path / "both.opus", 1.0, "a transcript"),
        Clip(tmp_path / "recognized.opus", 1.0, None),
        Clip(tmp_path / "mute.opus", 1.0, None),
        Clip(tmp_path / "unlabelled.opus", 1.0, "known"),
        Clip(tmp_path / "nothing.opus", 1.0, None),
    ]
    labelled = {clip.audio.stem: clip.text for clip in labelled_clips(clips, tmp_path, labels)}
    assert labelled == {"both": "a transcript", "recognized": "so it is", "unlabelled": "known"}
    plain = {clip.audio.stem: clip.text for clip in labelled_clips(clips, tmp_path, None)}
    assert plain == {"both": "a transcript", "unlabelled": "known"}


def test_a_recipe_with_labels_learns_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From manifest and labels through the loop: the labels arrive at the objective."""
    sound = np.random.default_rng(1).normal(size=16000).astype(np.float32) * 0.1
    (tmp_path / "clips").mkdir()
    with LabelFolder(tmp_path / "labels" / "clips") as labels:
        lines = []
        for number in range(4):
            soundfile.write(tmp_path / "clips" / f"{number}.wav", sound, 16000)
            lines.append(json.dumps({"audio": f"{number}.wav", "duration": 1.0, "text": None}))
            labels.append(f"{number}.wav", "so it is")
    (tmp_path / "clips" / "manifest.jsonl").write_text("\n".join(lines))
    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise" / "hum.wav", sound, 16000)
    (tmp_path / "noise" / "manifest.jsonl").write_text(
        json.dumps({"audio": "hum.wav", "kind": "fan", "split": "train"})
    )
    recipe = parse_recipe(
        {
            "title": "test",
            "model": {"name": "tiny"},
            "data": {
                "train": ["clips"],
                "noise": "noise",
                "batch_duration_s": 2.0,
                "pseudo_labels": "labels",
            },
            "augment": {"noise": 1.0, "speed": 1.0},
            "optimizer": {"name": "adamw", "learning_rate": 0.01},
            "schedule": {"steps": 6},
            "run": {"log_every": 2},
        },
        "test",
    )
    loop = assemble(recipe, tmp_path / "run", data=tmp_path, live=False)
    progress = loop.run()
    assert progress.finished and progress.skipped == 0
    assert isinstance(loop.objective, PseudoLabelObjective) and "words" in capsys.readouterr().err
