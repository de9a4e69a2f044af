"""What a run tells: one readable line for each logging step, a CSV, TensorBoard, and a live display in a
terminal.
"""

import contextlib
import csv
import io
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

COLUMNS = (
    "step", "epoch", "loss", "rate", "gradient", "hours_seen", "utterances_per_s", "times_real_time",
    "seconds", "skipped", "dev_wer", "dev_cer",
)  # fmt: skip


class RunLogger:
    """Writes the records of one run; silent for all processes but the leading one."""

    def __init__(
        self, folder: Path | None, *, total_steps: int | None, resumed_at: int = 0, live: bool | None = None,
        tensorboard: bool = True, stream: TextIO | None = None,
    ) -> None:  # fmt: skip
        self.total_steps = total_steps
        self.began = time.monotonic()
        self.began_at = resumed_at
        self._stream = stream or sys.stderr
        self._live: tuple[Progress, TaskID] | None = None
        self._csv: Path | None = folder / "progress.csv" if folder else None
        self._board: Any = None
        if self._csv is not None:
            _cut_records(self._csv, resumed_at)
        if folder is not None and tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_at)
        if folder is not None and (self._stream.isatty() if live is None else live):
            self._live = _live_display(total_steps, resumed_at, self._stream)

    def step(self, values: Mapping[str, float]) -> None:
        """One logging step: `step` counts finished steps, the rest by the names of COLUMNS, or further
        ones.
        """
        if self._live:
            progress, task = self._live
            progress.update(task, completed=values["step"], description=self.short_line(values))
        elif self._csv is not None:
            print(self.line(values), file=self._stream, flush=True)
        self._record(values)

    def line(self, values: Mapping[str, float]) -> str:
        """A logging step in words."""
        step = int(values["step"])
        of = f" of {self.total_steps:,}" if self.total_steps else ""
        parts = [f"step {step:,}{of} (epoch {int(values.get('epoch', 0)) + 1})"]
        parts.append(f"loss {values['loss']:.2f}")
        parts += [f"{name} {value:.3g}" for name, value in values.items() if name not in COLUMNS]
        parts.append(f"learning rate {values['rate']:.2g}")
        parts.append(f"gradient {values['gradient']:.2f}")
        parts.append(
            f"{values['utterances_per_s']:.1f} utterances/s, {values['times_real_time']:.0f} x real time"
        )
        if values.get("skipped"):
            parts.append(f"{values['skipped']:.0f} steps skipped")
        return " · ".join([*parts, *self._left(step)])

    def short_line(self, values: Mapping[str, float]) -> str:
        """The same for the live display, which has a bar for the rest."""
        parts = [f"loss {values['loss']:.2f}", f"{values['times_real_time']:.0f} x real time"]
        return " · ".join([*parts, *self._left(int(values["step"]))])

    def _left(self, step: int) -> list[str]:
        done = step - self.began_at
        if done <= 0 or self.total_steps is None:
            return []
        return [f"{duration((time.monotonic() - self.began) / done * (self.total_steps - step))} left"]

    def log_evaluation(
        self, step: int, rate: float, characters: float, best: bool, example: tuple[str, str] | None
    ) -> None:
        """A word error rate on the development set."""
        mark = ", the best so far" if best else ""
        words = f"step {step:,}: {100 * rate:.2f} % of words wrong on dev"
        self.say(f"{words} ({100 * characters:.2f} % of characters){mark}")
        if example:
            self.say(f"    said:  {example[0]}\n    heard: {example[1]}")
        self._record({"step": step, "dev_wer": rate, "dev_cer": characters})

    def say(self, text: str) -> None:
        """A line that is no record."""
        if self._live:
            self._live[0].console.print(text, markup=False, highlight=False)
        elif self._csv is not None:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Flush everything."""
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
            print(f"the record could not be written: {error}", file=self._stream)
        if self._board is not None:
            try:
                for name, value in values.items():
                    if name != "step":
                        self._board.add_scalar(name, value, int(values["step"]))
            except OSError as error:  # its writing thread has met a full disk and is gone
                print(f"TensorBoard's records end here: {error}", file=self._stream)
                self._board = None


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _short(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.7g}"


def _cut_records(path: Path, step: int) -> None:
    """Drop what a killed run recorded after the checkpoint that the resumed one starts from."""
    if not path.exists():
        return
    rows = [
        row for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))) if _is_before(row, step)
    ]
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def _is_before(row: Mapping[str, Any], step: int) -> bool:
    """True for a whole record up to that step; the last line of a killed run may be half a line."""
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
