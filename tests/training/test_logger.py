"""What a run tells: a line that a newcomer can read, a record that a resumed run goes on with, a live display."""

import io
from pathlib import Path

import pytest

from training.run.logger import RunLogger, duration

STEP = {
    "step": 1_200,
    "epoch": 3,
    "loss": 41.2,
    "rate": 0.0098,
    "gradient": 3.12,
    "utterances_per_s": 212.0,
    "times_real_time": 1840.4,
    "skipped": 2.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_logging_step_is_one_line_in_words(tmp_path: Path) -> None:
    told = io.StringIO()
    watch = RunLogger(tmp_path, total_steps=30_000, tensorboard=False, stream=told)
    watch.step(STEP)
    watch.log_evaluation(1_200, 0.123, 0.0456, True, ("he said", "he sad"))
    watch.close()
    first, second, *example = told.getvalue().splitlines()
    assert first.startswith(
        "step 1,200 of 30,000 (epoch 4) · loss 41.20 · learning rate 0.0098 · gradient 3.12"
    )
    assert "212.0 utterances/s, 1840 x real time · 2 steps skipped" in first and first.endswith("left")
    assert second == "step 1,200: 12.30 % of words wrong on dev (4.56 % of characters), the best so far"
    assert [line.split() for line in example] == [["said:", "he", "said"], ["heard:", "he", "sad"]]


def test_a_resumed_run_drops_what_was_recorded_after_its_checkpoint(tmp_path: Path) -> None:
    watch = RunLogger(tmp_path, total_steps=100, tensorboard=False, stream=io.StringIO())
    for step in (10, 20, 30):
        watch.step({**STEP, "step": step})
    with (tmp_path / "progress.csv").open("a") as file:
        file.write("4")  # killed in the middle of a line
    RunLogger(tmp_path, total_steps=100, resumed_at=20, tensorboard=False, stream=io.StringIO())
    rows = (tmp_path / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["step", "10", "20"]


def test_on_a_terminal_there_is_a_live_display(tmp_path: Path) -> None:
    terminal = Terminal()
    watch = RunLogger(tmp_path, total_steps=2_000, tensorboard=False, stream=terminal)
    watch.step(STEP)
    watch.log_evaluation(1_200, 0.5, 0.2, False, None)
    watch.close()
    assert "loss 41.20 · 1840 x real time" in terminal.getvalue()
    assert "60%" in terminal.getvalue() and "50.00 % of words wrong on dev" in terminal.getvalue()


def test_a_record_that_cannot_be_written_is_said_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "progress.csv").mkdir()
    told = io.StringIO()
    watch = RunLogger(None, total_steps=10, tensorboard=False, stream=told)
    watch._csv = tmp_path / "progress.csv"
    watch.step(STEP)
    assert "could not be written" in told.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"), [(12, "12 s"), (600, "10 min"), (7_200, "2.0 h"), (400_000, "4.6 days")]
)
def test_durations_are_said_as_people_do(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_full_disk_ends_the_records_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def add_scalar(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

    told = io.StringIO()
    watch = RunLogger(tmp_path, total_steps=2_000, tensorboard=False, stream=told)
    monkeypatch.setattr(watch, "_board", Full())
    for step in (1_200, 1_220):
        watch.step({**STEP, "step": step})
    watch.close()
    assert told.getvalue().count("TensorBoard's records end here: [Errno 28] No space left on device") == 1
    assert len((tmp_path / "progress.csv").read_text().splitlines()) == 3
