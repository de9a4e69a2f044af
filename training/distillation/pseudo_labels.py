"""Pseudo-labels: the words that a teacher recognizes in each clip that has no transcript, kept on disk.

`labels.jsonl` has one line a clip and only grows. A labeller may be killed at any moment: on opening, half a line
at the end is cut away and that clip is labelled again.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from training.errors import TrainingError
from training.run.file_lock import exclusive


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
    """The labels of one manifest: each clip's words. Read anywhere; written by one labeller at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.labels: dict[str, str] = {}
        self._path = folder / "labels.jsonl"
        self._whole_bytes = 0
        self._lines: IO[bytes] | None = None
        self._lock = ExitStack()
        self._take_in()

    def __enter__(self) -> "LabelFolder":
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as lock:
            lock.enter_context(exclusive(self.folder, "labelling"))
            self._take_in()  # another labeller may have added to it since
            self._lines = self._path.open("ab")
            self._lines.truncate(self._whole_bytes)
            self._lock = lock.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lines is not None:
            with suppress(OSError):  # whatever counts is written; on a full disk the rest cannot be
                self._lines.close()
        self._lines = None
        self._lock.close()

    def append(self, clip: str, words: str) -> None:
        """Add one clip."""
        if self._lines is None:
            raise TrainingError(f"{self.folder} is not open for writing: use it in a `with` statement.")
        try:
            self._lines.write(json.dumps({"clip": clip, "words": words}).encode() + b"\n")
            self._lines.flush()
        except OSError as error:
            raise TrainingError(
                f"The labels in {self.folder} cannot be written ({error.strerror}). "
                "Nothing before this clip is lost: free some room and run the same command again."
            ) from error
        self.labels[clip] = words

    def _take_in(self) -> None:
        """What the file holds now."""
        self.labels.clear()
        self._whole_bytes = 0
        for clip, words, size in self._read():
            self.labels[clip] = words
            self._whole_bytes += size

    def _read(self) -> Iterator[tuple[str, str, int]]:
        """Clip, words and bytes of every whole line."""
        try:
            written = self._path.read_bytes()
        except FileNotFoundError:
            return
        for line in written.splitlines(keepends=True):
            try:
                values = json.loads(line)
                clip, words = values["clip"], values["words"]
            except (ValueError, KeyError, TypeError):
                return
            if not line.endswith(b"\n"):
                return
            yield clip, words, len(line)
