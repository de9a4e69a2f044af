"""What a teacher hears in each clip: its words, and its log-probabilities frame by frame, kept on disk.

Files that only grow: `labels.jsonl` (a line a clip, written last), `log_probs.u8` (20 steps to a nat) and, where asked
for, `hidden-*.i8` (a hidden layer's outputs, `training.ear`; the name says in which directions).
A labeller may be killed at any moment: on opening, whatever is half written is cut away and labelled again.
What is learned from the labels is `training.distill`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
import numpy.typing as npt

from lm.score import character_errors
from training.alone import alone
from training.errors import TrainingError

HIDDEN_WIDTH = 64
"""Bytes that are kept of a hidden layer's output."""
STEPS_PER_NAT = 20.0
LOWEST = 255 / STEPS_PER_NAT

LogProbs = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Label:
    """One clip as the teacher heard it; `first_output` and `outputs` say where its frames lie."""

    clip: str
    words: str
    first_output: int
    outputs: int


@dataclass(frozen=True)
class Target:
    """What the student is to write for a clip, and whether the teacher's frames agree with it."""

    text: str
    frames_agree: bool


def quantise(log_probs: LogProbs) -> npt.NDArray[np.uint8]:
    """Log-probabilities in one byte each; everything under -12.75 counts as that."""
    steps: npt.NDArray[np.uint8] = np.clip(np.round(-log_probs * STEPS_PER_NAT), 0, 255).astype(np.uint8)
    return steps


def restore(stored: npt.NDArray[np.uint8]) -> LogProbs:
    """Back to natural logarithms, as near as one byte keeps them (0.025)."""
    return stored.astype(np.float32) / -STEPS_PER_NAT


def choose_target(transcript: str | None, heard: str, most_difference: float = 0.2) -> Target | None:
    """The transcript where there is one, else the teacher's words; None where neither holds any.

    Where the two differ by more than a fifth of the characters the teacher is wrong or the transcript is of
    something else: the transcript is believed, the teacher's frames are not.
    """
    if transcript:
        differing = character_errors(transcript, heard).rate
        return Target(transcript, differing <= most_difference)
    return Target(heard, True) if heard else None


def labelled_as(manifest: Path) -> tuple[Path, str]:
    """The folder that a manifest's clips are named from, and the name that its labels go by: its folder's, unless the
    file has a name of its own.
    """
    if manifest.is_dir():
        return manifest, manifest.name
    return manifest.parent, manifest.parent.name if manifest.name == "manifest.jsonl" else manifest.stem


def refuse_namesakes(manifests: Sequence[Path]) -> None:
    """Two manifests whose labels go by one name would take each other's words."""
    known: dict[str, Path] = {}
    for manifest in manifests:
        base, name = labelled_as(manifest)
        first = known.setdefault(name, base)
        if first.resolve() != base.resolve():
            raise TrainingError(
                f"The labels of {manifest} and of a manifest in {first} both go by the name {name!r}, and their clips "
                "would take each other's words: rename one of the two."
            )


def clip_key(audio: Path, base: Path) -> str:
    """What a clip is called in the labels of the manifest in the folder `base`."""
    return str(audio.relative_to(base)) if audio.is_relative_to(base) else str(audio)


class LabelFolder:
    """The labels of one manifest. Read anywhere; written by one labeller at a time.

    hidden: the directions of a hidden layer that is kept too, by name; all labels have it or none.
    """

    def __init__(self, folder: Path, classes: int, hidden: str = "") -> None:
        self.folder = folder
        self._hidden = f"hidden-{hidden}.i8" if hidden else ""
        self.widths = {"log_probs.u8": classes} | ({self._hidden: HIDDEN_WIDTH} if hidden else {})
        """Bytes of an output, by file."""
        self.labels: dict[str, Label] = {}
        self.outputs = 0
        """How many output frames are stored."""
        self._whole_bytes = 0
        self._lines: IO[bytes] | None = None
        self._frames: dict[str, IO[bytes]] = {}
        self._lock = ExitStack()
        self._take_in()

    def log_probs(self, clip: str) -> LogProbs:
        """The teacher's answer for a clip [outputs, classes]."""
        return restore(self._stored(clip, "log_probs.u8"))

    def hidden(self, clip: str) -> npt.NDArray[np.int8]:
        """What a hidden layer of it made [outputs, HIDDEN_WIDTH]."""
        return self._stored(clip, self._hidden).view(np.int8)

    def _stored(self, clip: str, file: str) -> npt.NDArray[np.uint8]:
        label, width = self.labels[clip], self.widths[file]
        shape = (label.outputs, width)
        if not label.outputs:
            return np.zeros(shape, np.uint8)
        return np.memmap(self._path(file), np.uint8, "r", label.first_output * width, shape)

    def __enter__(self) -> "LabelFolder":
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as lock:
            lock.enter_context(alone(self.folder, "labelling"))
            self._take_in()  # another labeller may have added to it since
            others = [file.name for file in self.folder.glob("hidden-*.i8") if file.name != self._hidden]
            if self.labels and others:
                raise TrainingError(
                    f"The labels in {self.folder} hold a hidden layer ({others[0]}) that new ones would not: label "
                    "with the same teacher and --hidden, or into another folder."
                )
            self._lines = self._path("labels.jsonl").open("ab")
            self._lines.truncate(self._whole_bytes)
            for file, width in self.widths.items():
                self._frames[file] = self._path(file).open("ab")
                self._frames[file].truncate(self.outputs * width)
            self._lock = lock.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (*self._frames.values(), self._lines):
            if file is not None:
                with suppress(OSError):  # whatever counts is written; on a full disk the rest cannot be
                    file.close()
        self._lines = None
        self._frames.clear()
        self._lock.close()

    def append(
        self, clip: str, words: str, log_probs: LogProbs, hidden: npt.NDArray[np.int8] | None = None
    ) -> None:
        """Add one clip: its frames first, then the line that makes them count."""
        if self._lines is None:
            raise TrainingError(f"{self.folder} is not open for writing: use it in a `with` statement.")
        label = Label(clip, words, self.outputs, len(log_probs))
        line = json.dumps(
            {"clip": clip, "words": words, "first": label.first_output, "outputs": label.outputs}
        )
        rows = (quantise(log_probs),) if hidden is None else (quantise(log_probs), hidden)
        try:
            for file, stored in zip(self._frames.values(), rows, strict=True):
                file.write(stored.tobytes())
                file.flush()
            self._lines.write(line.encode() + b"\n")
            self._lines.flush()
        except OSError as error:
            raise TrainingError(
                f"The labels in {self.folder} cannot be written ({error.strerror}). "
                "Nothing before this clip is lost: free some room and run the same command again."
            ) from error
        self._add(label)

    def _take_in(self) -> None:
        """What the files hold now."""
        self.labels.clear()
        self.outputs = self._whole_bytes = 0
        written = self._path("labels.jsonl")
        if (
            self._hidden
            and written.exists()
            and written.stat().st_size
            and not self._path(self._hidden).exists()
        ):
            raise TrainingError(
                f"The labels in {self.folder} were made without this hidden layer: label into another folder with "
                "--hidden, or remove them."
            )
        for label, end in self._read():
            self._add(label)
            self._whole_bytes = end

    def _add(self, label: Label) -> None:
        self.labels[label.clip] = label
        self.outputs = max(self.outputs, label.first_output + label.outputs)

    def _read(self) -> Iterator[tuple[Label, int]]:
        """Every whole label whose frames are all there, and where its line ends."""
        try:
            written = self._path("labels.jsonl").read_bytes()
            stored_outputs = min(
                self._path(file).stat().st_size // width for file, width in self.widths.items()
            )
        except FileNotFoundError:
            return
        end = 0
        for line in written.splitlines(keepends=True):
            try:
                values = json.loads(line)
                label = Label(values["clip"], values["words"], values["first"], values["outputs"])
            except (ValueError, KeyError, TypeError):
                return
            if not line.endswith(b"\n") or label.first_output + label.outputs > stored_outputs:
                return
            end += len(line)
            yield label, end

    def _path(self, name: str) -> Path:
        return self.folder / name
