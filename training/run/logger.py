"""The log of a run: one line per logging step, progress.csv, TensorBoard, and a live display on a terminal."""

import contextlib
import csv
import io
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from acoustic.files import replacing_file

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

COLUMNS = (
    "step", "epoch", "loss", "learning_rate", "grad_norm", "hours_seen", "utterances_per_s", "times_real_time",
    "elapsed_s", "skipped", "dev_wer", "dev_cer",
)  # fmt: skip


class RunLogger:
    """Writes the records of one run; does nothing without a folder, as in all processes but the main one."""

    def __init__(
        self, folder: Path | None, *, total_steps: int | None, resumed_at: int = 0, live: bool | None = None,
        tensorboard: bool = True, stream: TextIO | None = None,
    ) -> None:  # fmt: skip
        self.total_steps = total_steps
        self.began = time.monotonic()
        self.first_step = resumed_at
        self._stream = stream or sys.stderr
        self._live: tuple[Progress, TaskID] | None = None
        self._csv: Path | None = folder / "progress.csv" if folder else None
        self._board: Any = None
        if self._csv is not None:
            _drop_later_records(self._csv, resumed_at)
        if folder is not None and tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_at)
        if folder is not None and (self._stream.isatty() if live is None else live):
            self._live = _live_display(total_steps, resumed_at, self._stream)

    def log_step(self, values: Mapping[str, float]) -> None:
        """Log a step. `step` is the number of finished steps; the other values have the names of COLUMNS, or names of
        their own, which go to the line and to TensorBoard only.
        """
        if self._live:
            progress, task = self._live
            progress.update(task, completed=values["step"], description=self.short_line(values))
        elif self._csv is not None:
            print(self.line(values), file=self._stream, flush=True)
        self._record(values)

    def line(self, values: Mapping[str, float]) -> str:
        """A logging step as one readable line."""
        step = int(values["step"])
        of = f" of {self.total_steps:,}" if self.total_steps else ""
        parts = [f"step {step:,}{of} (epoch {int(values.get('epoch', 0)) + 1})"]
        parts.append(f"loss {values['loss']:.2f}")
        parts += [f"{name} {value:.3g}" for name, value in values.items() if name not in COLUMNS]
        parts.append(f"learning rate {values['learning_rate']:.2g}")
        parts.append(f"gradient norm {values['grad_norm']:.2f}")
        parts.append(
            f"{values['utterances_per_s']:.1f} utterances/s, {values['times_real_time']:.0f} x real time"
        )
        if values.get("skipped"):
            parts.append(f"{values['skipped']:.0f} steps skipped")
        return " · ".join([*parts, *self._remaining(step)])

    def short_line(self, values: Mapping[str, float]) -> str:
        """The line beside the progress bar of the live display."""
        parts = [f"loss {values['loss']:.2f}", f"{values['times_real_time']:.0f} x real time"]
        return " · ".join([*parts, *self._remaining(int(values["step"]))])

    def _remaining(self, step: int) -> list[str]:
        done = step - self.first_step
        if done <= 0 or self.total_steps is None:
            return []
        return [f"{duration((time.monotonic() - self.began) / done * (self.total_steps - step))} left"]

    def log_evaluation(
        self, step: int, wer: float, cer: float, best: bool, example: tuple[str, str] | None
    ) -> None:
        """Log the error rates on the development set, with one utterance as (reference, hypothesis)."""
        mark = ", the best so far" if best else ""
        self.message(f"step {step:,}: dev WER {100 * wer:.2f} %, CER {100 * cer:.2f} %{mark}")
        if example:
            self.message(f"    reference:  {example[0]}\n    hypothesis: {example[1]}")
        self._record({"step": step, "dev_wer": wer, "dev_cer": cer})

    def message(self, text: str) -> None:
        """Print a line that is not recorded."""
        if self._live:
            self._live[0].console.print(text, markup=False, highlight=False)
        elif self._csv is not None:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Flush and close all outputs."""
        if self._live:
            self._live[0].stop()
        if self._board is not None:
            with contextlib.suppress(OSError):
                self._board.close()

    def _record(self, values: Mapping[str, float]) -> None:
        if self._csv is None:
            return
        try:
            with self._csv.open("a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow({name: _short(value) for name, value in values.items()})
        except OSError as error:
            print(f"progress.csv could not be written: {error}", file=self._stream)
        if self._board is not None:
            try:
                for name, value in values.items():
                    if name != "step":
                        self._board.add_scalar(name, value, int(values["step"]))
            except OSError as error:  # its writer thread has ended, for example on a full disk
                print(f"TensorBoard logging stops here: {error}", file=self._stream)
                self._board = None


def duration(seconds: float) -> str:
    """A duration in a fitting unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _short(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.7g}"


def _drop_later_records(path: Path, step: int) -> None:
    """Drop what a killed run recorded after the checkpoint that the resumed run starts from."""
    if not path.exists():
        return
    rows = [
        row for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))) if _is_before(row, step)
    ]
    with replacing_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _is_before(row: Mapping[str, Any], step: int) -> bool:
    """True for a complete record up to that step; the last line of a killed run may be truncated."""
    try:
        return None not in row.values() and int(row["step"]) <= step
    except (KeyError, TypeError, ValueError):
        return False


def _live_display(total_steps: int | None, done: int, stream: TextIO) -> "tuple[Progress, TaskID]":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (BarColumn(bar_width=20), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
    progress = Progress(*columns, console=Console(file=stream))
    progress.start()
    return progress, progress.add_task("starting", total=total_steps, completed=done)
