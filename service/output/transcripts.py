"""The results of `silica transcribe` and how they are written to files or standard output."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service.errors import ErrorCode, ServiceError
from service.output.subtitles import to_srt, to_vtt


@dataclass(frozen=True)
class TranscriptWord:
    """A word with its times. `confidence` is None when the server does not send it."""

    text: str
    start_s: float
    end_s: float
    confidence: float | None = None


@dataclass(frozen=True)
class FileTranscript:
    """The words of one file, or the error."""

    file: str
    words: Sequence[TranscriptWord] = ()
    duration_s: float = 0.0
    took_s: float = 0.0
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON representation."""
        if self.error is not None:
            return {"file": self.file, "error": self.error}
        return {
            "file": self.file,
            "error": None,
            "duration_s": round(self.duration_s, 3),
            "took_s": round(self.took_s, 3),
            "text": " ".join(word.text for word in self.words),
            "words": [
                {name: value for name, value in asdict(word).items() if value is not None}
                for word in self.words
            ],
        }

    def content(self, output_format: str) -> str:
        """The transcript in an output format."""
        if output_format == "json":
            return json.dumps(self.as_json(), indent=1) + "\n"
        if output_format == "text":
            return " ".join(word.text for word in self.words) + "\n"
        return to_srt(self.words) if output_format == "srt" else to_vtt(self.words)


def reject_duplicate_names(files: Sequence[str], out: Path) -> None:
    """ServiceError FILES for two recordings of the same name, whose transcripts would overwrite each other."""
    folder_of: dict[str, str] = {}
    for file in files:
        name = Path(file).name
        other = folder_of.setdefault(name, file)
        if other != file:
            raise ServiceError(
                ErrorCode.FILES,
                f"{other} and {file} would both be written to {out / name}.*.",
                "Transcribe their folders separately, with different --out folders.",
            )


@dataclass(frozen=True)
class TranscriptWriter:
    """Writes transcripts as they are finished."""

    output_format: str
    out: Path | None
    multiple: bool

    def write(self, transcript: FileTranscript) -> None:
        """Write to the folder or to standard output. JSON on standard output is written at the end instead."""
        if transcript.error is not None:
            return
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            name = "stdin" if transcript.file == "-" else Path(transcript.file).name
            suffix = "txt" if self.output_format == "text" else self.output_format
            (self.out / f"{name}.{suffix}").write_text(
                transcript.content(self.output_format), encoding="utf-8"
            )
        elif self.output_format != "json":
            name = f"== {transcript.file}\n" if self.multiple else ""
            sys.stdout.write(name + transcript.content(self.output_format))
            sys.stdout.flush()
