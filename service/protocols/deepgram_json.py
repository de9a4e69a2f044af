"""JSON that Deepgram's live and pre-recorded protocols share: one alternative with its words, and the model's UUID.

The formatting (numbers, punctuation, capitals) is a function from service/output/formatting.py.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from service.session.events import Alternative, Word

UUID_SPACE = uuid.UUID("6f1c9a52-5b43-4d0e-9f64-5c2f4c7a11d3")


class FormattedPiece(Protocol):
    """A piece of formatted text, and the spoken words [first, end) that it stands for."""

    @property
    def text(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...


Formatter = Callable[[Sequence[str]], Sequence[FormattedPiece]]
"""Turns the words of a final into pieces of formatted text, in order."""


def uuid_for_model(model: str) -> str:
    """The UUID by which Deepgram's messages identify a model: a hash of its name, the same on every server."""
    return str(uuid.uuid5(UUID_SPACE, model))


def alternative_json(one: Alternative, formatter: Formatter | None = None) -> dict[str, Any]:
    """One hypothesis; with `formatter`, its transcript is the formatted text."""
    if formatter is None or not one.words:
        words, text = [_word(word) for word in one.words], one.text
    else:
        pieces = formatter([word.text for word in one.words])
        words = [_formatted_word(piece, one.words) for piece in pieces]
        text = " ".join(piece.text for piece in pieces)
    return {"transcript": text, "confidence": round(one.confidence, 4), "words": words}


def _formatted_word(piece: FormattedPiece, words: Sequence[Word]) -> dict[str, Any]:
    spoken = words[piece.first : piece.end]
    confidence = sum(word.confidence for word in spoken) / len(spoken)
    text = " ".join(word.text for word in spoken)
    joined = Word(text, spoken[0].start_s, spoken[-1].end_s, confidence)
    return {**_word(joined), "punctuated_word": piece.text}


def _word(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start": round(word.start_s, 3),
        "end": round(word.end_s, 3),
        "confidence": round(word.confidence, 4),
    }
