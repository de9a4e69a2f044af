"""Pseudo-labels on disk survive kills and full disks."""

from pathlib import Path

import pytest

from tests.full_disk import full_disk
from training.distillation.pseudo_labels import LabelFolder, check_unique_names, label_name
from training.errors import TrainingError


def write_labels(folder: Path, count: int) -> None:
    with LabelFolder(folder) as labels:
        for number in range(count):
            labels.append(f"{number}.opus", f"clip {number}")


def test_labels_are_read_back(tmp_path: Path) -> None:
    write_labels(tmp_path, 3)
    assert LabelFolder(tmp_path).labels == {"0.opus": "clip 0", "1.opus": "clip 1", "2.opus": "clip 2"}


@pytest.mark.parametrize("lost_bytes", [1, 7, 30])
def test_a_killed_process_loses_only_the_last_clip(tmp_path: Path, lost_bytes: int) -> None:
    write_labels(tmp_path, 4)
    path = tmp_path / "labels.jsonl"
    path.write_bytes(path.read_bytes()[:-lost_bytes])
    assert list(LabelFolder(tmp_path).labels) == ["0.opus", "1.opus", "2.opus"]
    with LabelFolder(tmp_path) as labels:
        labels.append("again.opus", "again")
    again = LabelFolder(tmp_path).labels
    assert list(again) == ["0.opus", "1.opus", "2.opus", "again.opus"]
    assert again["2.opus"] == "clip 2" and again["again.opus"] == "again"


def test_a_full_disk_keeps_all_earlier_labels(tmp_path: Path) -> None:
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


def test_a_second_writer_is_refused_and_later_resumes_after_the_first(tmp_path: Path) -> None:
    second = LabelFolder(tmp_path)
    with LabelFolder(tmp_path) as first:
        first.append("a.opus", "a")
        with pytest.raises(TrainingError, match=f"Another process is labeling in {tmp_path}. Wait"), second:
            pass
        first.append("b.opus", "b")
    with second:
        assert list(second.labels) == ["a.opus", "b.opus"]
        second.append("c.opus", "c")
    assert LabelFolder(tmp_path).labels == {"a.opus": "a", "b.opus": "b", "c.opus": "c"}


def test_appending_outside_a_with_statement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not open for writing"):
        LabelFolder(tmp_path).append("a.opus", "a")


def test_labels_have_the_name_of_the_folder_or_of_the_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "train-clean"
    folder.mkdir()
    assert label_name(folder) == (folder, "train-clean")
    assert label_name(folder / "manifest.jsonl") == (folder, "train-clean")
    assert label_name(folder / "half.jsonl") == (folder, "half")


def test_two_manifests_with_the_same_label_name_are_refused(tmp_path: Path) -> None:
    first, second = (tmp_path / place / "train" for place in "ab")
    for folder in (first, second):
        folder.mkdir(parents=True)
    check_unique_names([first, first / "manifest.jsonl", second / "half.jsonl"])
    with pytest.raises(
        TrainingError, match=r"b/train and of a manifest in .*a/train have the same name 'train'"
    ):
        check_unique_names([first, second])
