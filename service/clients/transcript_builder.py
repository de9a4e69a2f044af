"""Builds a transcript from the messages of a live session, and formats it as text, subtitles or JSON.

No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from service.output.subtitles import to_srt, to_vtt
from service.session.events import Word

Format = Literal["text", "srt", "vtt", "json"]


@dataclass
class Line:
    """The words between two pauses."""

    words: list[Word] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the line."""
        return " ".join(word.text for word in self.words)


class TranscriptBuilder:
    """Collects `Results` messages into finished lines and the current line."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.partial = ""
        self.lag_s: float | None = None
        self._open: Line | None = None

    @property
    def current_text(self) -> str:
        """The unfinished line, with the interim result."""
        finished_text = self._open.text if self._open is not None else ""
        return f"{finished_text} {self.partial}".strip()

    def add_message(self, message: Mapping[str, Any]) -> list[Line]:
        """Process one message and return the lines that it finished."""
        kind = message.get("type")
        if kind == "Heartbeat":
            self.lag_s = float(message["lag_s"])
        if kind != "Results":
            return []
        best = message["channel"]["alternatives"][0]
        if not message["is_final"]:
            self.partial = str(best["transcript"])
            return []
        self.partial = ""
        words = [
            Word(
                str(word.get("punctuated_word") or word["word"]),
                float(word["start"]),
                float(word["end"]),
                float(word["confidence"]),
            )
            for word in best["words"]
        ]
        if words:
            self._open = self._open or Line()
            self._open.words += words
        return self.close() if message["speech_final"] else []

    def close(self) -> list[Line]:
        """Finish the current line."""
        line, self._open = self._open, None
        if line is None:
            return []
        self.lines.append(line)
        return [line]


def format_lines(lines: Iterable[Line], output_format: Format) -> str:
    """The session in a file format."""
    lines = list(lines)
    words = [word for line in lines for word in line.words]
    if output_format == "srt":
        return to_srt(words)
    if output_format == "vtt":
        return to_vtt(words)
    if output_format == "text":
        return "".join(f"{line.text}\n" for line in lines)
    segments = [
        {
            "start": line.words[0].start_s,
            "end": line.words[-1].end_s,
            "text": line.text,
            "words": [
                {"word": w.text, "start": w.start_s, "end": w.end_s, "confidence": w.confidence}
                for w in line.words
            ],
        }
        for line in lines
    ]
    return json.dumps({"text": " ".join(line.text for line in lines), "segments": segments}) + "\n"
