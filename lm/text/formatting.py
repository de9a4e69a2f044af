"""Spoken words as a reader wants them: figures (`smart_format`), punctuation and capitals (`punctuate`).

Both are optional and work on the words of one finished utterance; every written piece knows its spoken words, so
that their times can be kept. The numbers themselves are in spoken_figures.py, the tagger in punctuation/.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lm.text.corpus import open_text
from lm.text.inverse_normalize import FormattedWord, inverse_normalize
from lm.text.normalize import normalize
from lm.text.verbalize import MONTHS

if TYPE_CHECKING:
    from lm.text.punctuation.model import Punctuator

__all__ = ["FormattedWord", "NumberAccuracy", "format_words", "number_accuracy", "smart_format"]

# What two writers of the same number may do differently.
_STYLES = (
    (r"\b([ap])\.m\b\.?", r"\1m"),
    (r"(?<=\d)[:.]00\b", ""),
    (r"(?<=\d) ([ap]m)\b", r"\1"),
    (r"(?<=\d) percent", "%"),
    (rf"\b({'|'.join(MONTHS)}) (\d\d?)(?:st|nd|rd|th)\b", r"\1 \2"),
    (r"[-\u2013\u2014]", " "),
)


def format_words(
    words: Sequence[str], figures: bool, punctuator: "Punctuator | None" = None
) -> list[FormattedWord]:
    """The words as written pieces, in order, each spoken word in exactly one of them."""
    pieces = (
        inverse_normalize(words)
        if figures
        else [FormattedWord(word, at, at + 1) for at, word in enumerate(words)]
    )
    if punctuator is None:
        return pieces
    from lm.text.punctuation.labels import MARKS
    from lm.text.punctuation.model import capitalize

    marks, capitals = punctuator.tag(words)
    punctuated: list[FormattedWord] = []
    begins = True
    for piece in pieces:
        text = piece.text
        if text == words[piece.first]:
            text = capitalize(text, capitals[piece.first], begins)
        mark = marks[piece.end - 1]
        punctuated.append(FormattedWord(text + MARKS[mark], piece.first, piece.end))
        begins = mark >= 2
    return punctuated


def smart_format(text: str) -> str:
    """A spoken text with figures: "it cost five dollars" -> "it cost $5"."""
    return " ".join(piece.text for piece in inverse_normalize(text.split()))


@dataclass(frozen=True)
class NumberAccuracy:
    """How many numbers of a written text are restored after the text was normalized, and how many are wrong."""

    figures: int
    written: int
    right: int

    @property
    def recall(self) -> float:
        """Share of the text's figures that came back exactly."""
        return self.right / max(self.figures, 1)

    @property
    def precision(self) -> float:
        """Share of the figures written that stood there."""
        return self.right / max(self.written, 1)


def number_accuracy(paths: Iterable[Path]) -> NumberAccuracy:
    """Normalize every line that has a digit, format it again, and compare the numbers in both."""
    figures = written = right = 0
    for path in paths:
        for line in open_text(path):
            if not any(letter.isdigit() for letter in line):
                continue
            there = _figures(line)
            back = _figures(smart_format(normalize(line)))
            figures += len(there)
            written += len(back)
            for figure in set(there):
                right += min(there.count(figure), back.count(figure))
    return NumberAccuracy(figures, written, right)


def _figures(text: str) -> list[str]:
    """Tokens with a digit but 0 to 9 alone, without matters of style: commas, a.m., March 1st for March 1."""
    text = text.lower()
    for style, plain in _STYLES:
        text = re.sub(style, plain, text)
    tokens = (
        token.strip(".,;:!?()[]\"'\u201c\u201d\u2018\u2019/").replace(",", "") for token in text.split()
    )
    tokens = (token.removesuffix("'s") for token in tokens if len(token) > 1)
    return [token for token in tokens if any(letter.isdigit() for letter in token)]
