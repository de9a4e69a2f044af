"""The log of a run: readable lines, records that continue after a resume, a live display."""

import io
from pathlib import Path

import pytest

from training.run.logger import RunLogger, duration

STEP = {
    "step": 1_200,
    "epoch": 3,
    "loss": 41.2,
    "learning_rate": 0.0098,
    "grad_norm": 3.12,
    "utterances_per_s": 212.0,
    "times_real_time": 1840.4,
    "skipped": 2.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_logging_step_is_one_readable_line(tmp_path: Path) -> None:
    output = io.StringIO()
    logger = RunLogger(tmp_path, total_steps=30_000, tensorboard=False, stream=output)
    logger.log_step(STEP)
    logger.log_evaluation(1_200, 0.123, 0.0456, True, ("he said", "he sad"))
    logger.close()
    first, second, *example = output.getvalue().splitlines()
    assert first.startswith(
        "step 1,200 of 30,000 (epoch 4) · loss 41.20 · learning rate 0.0098 · gradient norm 3.12"
    )
    assert "212.0 utterances/s, 1840 x real time · 2 steps skipped" in first and first.endswith("left")
    assert second == "step 1,200: dev WER 12.30 %, CER 4.56 %, the best so far"
    assert [line.split() for line in example] == [["reference:", "he", "said"], ["hypothesis:", "he", "sad"]]


def test_a_resumed_run_drops_what_was_recorded_after_its_checkpoint(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path, total_steps=100, tensorboard=False, stream=io.StringIO())
    for step in (10, 20, 30):
        logger.log_step({**STEP, "step": step})
    with (tmp_path / "progress.csv").open("a") as file:
        file.write("4")  # killed in the middle of a line
    RunLogger(tmp_path, total_steps=100, resumed_at=20, tensorboard=False, stream=io.StringIO())
    rows = (tmp_path / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["step", "10", "20"]


def test_on_a_terminal_there_is_a_live_display(tmp_path: Path) -> None:
    terminal = Terminal()
    logger = RunLogger(tmp_path, total_steps=2_000, tensorboard=False, stream=terminal)
    logger.log_step(STEP)
    logger.log_evaluation(1_200, 0.5, 0.2, False, None)
    logger.close()
    assert "loss 41.20 · 1840 x real time" in terminal.getvalue()
    assert "60%" in terminal.getvalue() and "dev WER 50.00 %" in terminal.getvalue()


def test_a_record_that_cannot_be_written_is_reported_and_training_continues(tmp_path: Path) -> None:
    (tmp_path / "progress.csv").mkdir()
    output = io.StringIO()
    logger = RunLogger(None, total_steps=10, tensorboard=False, stream=output)
    logger._csv = tmp_path / "progress.csv"
    logger.log_step(STEP)
    assert "could not be written" in output.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(12, "12 s"), (600, "10 min"), (7_200, "2.0 h"), (400_000, "4.6 days")]
)
def test_durations_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_full_disk_ends_tensorboard_logging_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def add_scalar(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

    output = io.StringIO()
    logger = RunLogger(tmp_path, total_steps=2_000, tensorboard=False, stream=output)
    monkeypatch.setattr(logger, "_board", Full())
    for step in (1_200, 1_220):
        logger.log_step({**STEP, "step": step})
    logger.close()
    assert output.getvalue().count("TensorBoard logging stops here: [Errno 28] No space left on device") == 1
    assert len((tmp_path / "progress.csv").read_text().splitlines()) == 3
