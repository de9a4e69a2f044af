"""Labels survive whatever stops the labeller, and the rule that says whom to believe."""

from pathlib import Path

import numpy as np
import pytest

from tests.full_disk import full_disk
from training.errors import TrainingError
from training.labels import (
    HIDDEN_WIDTH,
    LOWEST,
    LabelFolder,
    choose_target,
    labelled_as,
    quantise,
    refuse_namesakes,
    restore,
)

CLASSES = 29


def answer(outputs: int, seed: int = 0) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=(outputs, CLASSES)).astype(np.float32) * 3
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return np.maximum(log_probs, -LOWEST)


def filled(folder: Path, count: int) -> None:
    with LabelFolder(folder, CLASSES) as labels:
        for number in range(count):
            labels.append(f"{number}.opus", f"clip {number}", answer(10 + number, number))


def test_one_byte_keeps_what_matters() -> None:
    log_probs = answer(50)
    assert np.abs(restore(quantise(log_probs)) - log_probs).max() <= 0.0251


def test_labels_come_back(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    labels = LabelFolder(tmp_path, CLASSES)
    assert [label.words for label in labels.labels.values()] == ["clip 0", "clip 1", "clip 2"]
    assert np.allclose(labels.log_probs("1.opus"), answer(11, 1), atol=0.03)


@pytest.mark.parametrize("lost", [1, 7, 40])
@pytest.mark.parametrize("file", ["labels.jsonl", "log_probs.u8", "hidden-abc.i8"])
def test_a_killed_labeller_loses_only_the_last_clip(tmp_path: Path, file: str, lost: int) -> None:
    def hidden(outputs: int) -> np.ndarray:
        return np.full((outputs, HIDDEN_WIDTH), outputs, np.int8)

    with LabelFolder(tmp_path, CLASSES, "abc") as labels:
        for number in range(4):
            outputs = 10 + number
            labels.append(f"{number}.opus", f"clip {number}", answer(outputs, number), hidden(outputs))
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:-lost])
    assert list(LabelFolder(tmp_path, CLASSES, "abc").labels) == ["0.opus", "1.opus", "2.opus"]
    with LabelFolder(tmp_path, CLASSES, "abc") as labels:
        labels.append("again.opus", "again", answer(5, 9), hidden(5))
    again = LabelFolder(tmp_path, CLASSES, "abc")
    assert np.allclose(again.log_probs("again.opus"), answer(5, 9), atol=0.03)
    assert np.allclose(again.log_probs("2.opus"), answer(12, 2), atol=0.03)
    assert np.array_equal(again.hidden("again.opus"), hidden(5))
    assert np.array_equal(again.hidden("2.opus"), hidden(12))


def test_labels_with_and_without_a_hidden_layer_are_never_mixed_nor_lost(tmp_path: Path) -> None:
    filled(tmp_path / "plain", 2)
    with pytest.raises(TrainingError, match="plain were made without this hidden layer: label into another"):
        LabelFolder(tmp_path / "plain", CLASSES, "abc")
    assert len(LabelFolder(tmp_path / "plain", CLASSES).labels) == 2
    rows = np.ones((10, HIDDEN_WIDTH), np.int8)
    with LabelFolder(tmp_path / "rich", CLASSES, "abc") as labels:
        labels.append("0.opus", "clip 0", answer(10), rows)
    assert list(LabelFolder(tmp_path / "rich", CLASSES).labels) == ["0.opus"], "words alone may be read"
    with pytest.raises(TrainingError, match=r"hold a hidden layer \(hidden-abc.i8\) that new ones would not"):
        filled(tmp_path / "rich", 2)
    with pytest.raises(TrainingError, match="were made without this hidden layer"):
        LabelFolder(tmp_path / "rich", CLASSES, "other")
    assert np.array_equal(LabelFolder(tmp_path / "rich", CLASSES, "abc").hidden("0.opus"), rows)


def test_a_full_disk_costs_no_label_before_it(tmp_path: Path) -> None:
    with (
        pytest.raises(TrainingError, match=r"cannot be written \(File too large\)"),
        LabelFolder(tmp_path, CLASSES) as labels,
    ):
        labels.append("0.opus", "clip 0", answer(10))
        with full_disk():
            labels.append("1.opus", "clip 1", answer(500))
    with LabelFolder(tmp_path, CLASSES) as labels:
        assert list(labels.labels) == ["0.opus"]
        labels.append("1.opus", "clip 1", answer(500, 1))
    assert np.allclose(LabelFolder(tmp_path, CLASSES).log_probs("1.opus"), answer(500, 1), atol=0.03)


def test_two_labellers_in_one_folder_are_refused_and_the_next_goes_on_after_both(tmp_path: Path) -> None:
    late = LabelFolder(tmp_path, CLASSES)
    with LabelFolder(tmp_path, CLASSES) as first:
        first.append("a.opus", "a", answer(10, 1))
        with pytest.raises(TrainingError, match=f"Another process is labelling in {tmp_path}. Wait"), late:
            pass
        first.append("b.opus", "b", answer(20, 2))
    with late:
        assert list(late.labels) == ["a.opus", "b.opus"]
        late.append("c.opus", "c", answer(30, 3))
    again = LabelFolder(tmp_path, CLASSES)
    for clip, outputs, seed in (("a.opus", 10, 1), ("b.opus", 20, 2), ("c.opus", 30, 3)):
        assert np.allclose(again.log_probs(clip), answer(outputs, seed), atol=0.03)


def test_whom_to_believe() -> None:
    agreed = choose_target("call the office", "call the ofice")
    assert agreed is not None and agreed.text == "call the office" and agreed.frames_agree
    doubted = choose_target("call the office", "gold fish")
    assert doubted is not None and doubted.text == "call the office" and not doubted.frames_agree
    alone = choose_target(None, "so it is")
    assert alone is not None and alone.text == "so it is" and alone.frames_agree
    assert choose_target(None, "") is None


def test_writing_needs_an_open_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not open for writing"):
        LabelFolder(tmp_path, CLASSES).append("a.opus", "a", answer(1))


def test_labels_go_by_the_folder_of_a_manifest_or_by_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "train-clean"
    folder.mkdir()
    assert labelled_as(folder) == (folder, "train-clean")
    assert labelled_as(folder / "manifest.jsonl") == (folder, "train-clean")
    assert labelled_as(folder / "half.jsonl") == (folder, "half")


def test_two_manifests_whose_labels_go_by_one_name_are_refused(tmp_path: Path) -> None:
    first, second = (tmp_path / place / "train" for place in "ab")
    for folder in (first, second):
        folder.mkdir(parents=True)
    refuse_namesakes([first, first / "manifest.jsonl", second / "half.jsonl"])
    with pytest.raises(
        TrainingError, match=r"b/train and of a manifest in .*a/train both go by the name 'train'"
    ):
        refuse_namesakes([first, second])
