"""Formats the words of a final: numbers as digits (`smart_format`), punctuation and capitals (`punctuate`).

Both are optional. Every formatted word refers to its spoken words, so that times can be kept. inverse_normalize.py
converts numbers; punctuation/ has the tagger.
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

# Differences of style that do not count as errors, as (pattern, replacement).
_STYLES = (
    (r"\b([ap])\.m\b\.?", r"\1m"),
    (r"(?<=\d)[:.]00\b", ""),
    (r"(?<=\d) ([ap]m)\b", r"\1"),
    (r"(?<=\d) percent", "%"),
    (rf"\b({'|'.join(MONTHS)}) (\d\d?)(?:st|nd|rd|th)\b", r"\1 \2"),
    (r"[-\u2013\u2014]", " "),
)


def format_words(
    words: Sequence[str], numerals: bool, punctuator: "Punctuator | None" = None
) -> list[FormattedWord]:
    """The formatted words in order. Each spoken word belongs to exactly one of them."""
    formatted = (
        inverse_normalize(words)
        if numerals
        else [FormattedWord(word, at, at + 1) for at, word in enumerate(words)]
    )
    if punctuator is None:
        return formatted
    from lm.text.punctuation.labels import MARKS
    from lm.text.punctuation.model import capitalize

    marks, capitals = punctuator.tag(words)
    punctuated: list[FormattedWord] = []
    sentence_start = True
    for word in formatted:
        text = word.text
        if text == words[word.first]:
            text = capitalize(text, capitals[word.first], sentence_start)
        mark = marks[word.end - 1]
        punctuated.append(FormattedWord(text + MARKS[mark], word.first, word.end))
        sentence_start = mark >= 2
    return punctuated


def smart_format(text: str) -> str:
    """A spoken text with numbers as digits: "it cost five dollars" -> "it cost $5"."""
    return " ".join(word.text for word in inverse_normalize(text.split()))


@dataclass(frozen=True)
class NumberAccuracy:
    """The numbers of a written text, those restored after it was normalized, and the matches of both."""

    expected: int
    restored: int
    correct: int

    @property
    def recall(self) -> float:
        """The share of the text's numbers that are restored exactly."""
        return self.correct / max(self.expected, 1)

    @property
    def precision(self) -> float:
        """The share of the restored numbers that are in the text."""
        return self.correct / max(self.restored, 1)


def number_accuracy(paths: Iterable[Path]) -> NumberAccuracy:
    """Normalize every line with a digit, format it again, and compare the numbers."""
    expected_count = restored_count = correct = 0
    for path in paths:
        for line in open_text(path):
            if not any(character.isdigit() for character in line):
                continue
            expected = _number_tokens(line)
            restored = _number_tokens(smart_format(normalize(line)))
            expected_count += len(expected)
            restored_count += len(restored)
            for token in set(expected):
                correct += min(expected.count(token), restored.count(token))
    return NumberAccuracy(expected_count, restored_count, correct)


def _number_tokens(text: str) -> list[str]:
    """The tokens with a digit, without differences of style. Single digits are left out: they may stay words."""
    text = text.lower()
    for style, plain in _STYLES:
        text = re.sub(style, plain, text)
    tokens = (
        token.strip(".,;:!?()[]\"'\u201c\u201d\u2018\u2019/").replace(",", "") for token in text.split()
    )
    tokens = (token.removesuffix("'s") for token in tokens if len(token) > 1)
    return [token for token in tokens if any(character.isdigit() for character in token)]
