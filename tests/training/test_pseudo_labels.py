"""Labels survive whatever stops the labeller."""

from pathlib import Path

import pytest

from tests.full_disk import full_disk
from training.distillation.pseudo_labels import LabelFolder, labelled_as, refuse_namesakes
from training.errors import TrainingError


def filled(folder: Path, count: int) -> None:
    with LabelFolder(folder) as labels:
        for number in range(count):
            labels.append(f"{number}.opus", f"clip {number}")


def test_labels_come_back(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    assert LabelFolder(tmp_path).labels == {"0.opus": "clip 0", "1.opus": "clip 1", "2.opus": "clip 2"}


@pytest.mark.parametrize("lost", [1, 7, 30])
def test_a_killed_labeller_loses_only_the_last_clip(tmp_path: Path, lost: int) -> None:
    filled(tmp_path, 4)
    path = tmp_path / "labels.jsonl"
    path.write_bytes(path.read_bytes()[:-lost])
    assert list(LabelFolder(tmp_path).labels) == ["0.opus", "1.opus", "2.opus"]
    with LabelFolder(tmp_path) as labels:
        labels.append("again.opus", "again")
    again = LabelFolder(tmp_path).labels
    assert list(again) == ["0.opus", "1.opus", "2.opus", "again.opus"]
    assert again["2.opus"] == "clip 2" and again["again.opus"] == "again"


def test_a_full_disk_costs_no_label_before_it(tmp_path: Path) -> None:
    words = "so it is " * 1000
    with (
        pytest.raises(TrainingError, match=r"cannot be written \(File too large\)"),
        LabelFolder(tmp_path) as labels,
    ):
        labels.append("0.opus", "clip 0")
        with full_disk():
            labels.append("1.opus", words)
    with LabelFolder(tmp_path) as labels:
        assert list(labels.labels) == ["0.opus"]
        labels.append("1.opus", words)
    assert LabelFolder(tmp_path).labels == {"0.opus": "clip 0", "1.opus": words}


def test_two_labellers_in_one_folder_are_refused_and_the_next_goes_on_after_both(tmp_path: Path) -> None:
    late = LabelFolder(tmp_path)
    with LabelFolder(tmp_path) as first:
        first.append("a.opus", "a")
        with pytest.raises(TrainingError, match=f"Another process is labelling in {tmp_path}. Wait"), late:
            pass
        first.append("b.opus", "b")
    with late:
        assert list(late.labels) == ["a.opus", "b.opus"]
        late.append("c.opus", "c")
    assert LabelFolder(tmp_path).labels == {"a.opus": "a", "b.opus": "b", "c.opus": "c"}


def test_writing_needs_an_open_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not open for writing"):
        LabelFolder(tmp_path).append("a.opus", "a")


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
