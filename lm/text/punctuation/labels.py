"""Written text as spoken words with what a reader wants back: the mark after each word, and its capitals."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lm.text.corpus import open_text, sentences
from lm.text.normalize import DOTTED_ABBREVIATIONS, normalize

MARKS = ("", ",", ".", "?")
CAPITALS = ("lower", "first", "all")
# The capital of a sentence's first word says nothing about the word.
IGNORE_INDEX = -1
_PIECES = re.compile(r"[\s\u2014]+|(?<=[A-Za-z])[-\u2013]+(?=[A-Za-z])|--+")
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+")
_CLOSING = "\"'”’)]*_"
_MARK_OF = {",": 1, ";": 1, ":": 1, ".": 2, "!": 2, "?": 3}


@dataclass(frozen=True)
class TaggedWords:
    """Spoken words with a mark number and a capital number each."""

    words: tuple[str, ...]
    marks: tuple[int, ...]
    capitals: tuple[int, ...]


def tag_sentence(sentence: str) -> TaggedWords:
    """One written sentence."""
    words: list[str] = []
    marks: list[int] = []
    capitals: list[int] = []
    for piece in _PIECES.split(sentence.strip()):
        spoken = normalize(piece).split()
        bare = piece.rstrip(_CLOSING)
        mark = _MARK_OF.get(bare[-1:], 0)
        if mark == 2 and (_INITIALS.fullmatch(bare) or bare[:-1].lower() in DOTTED_ABBREVIATIONS):
            mark = 0
        if not spoken:
            if mark and marks:
                marks[-1] = mark
            continue
        letters = [letter for letter in piece if letter.isalpha()]
        capital = 0
        if letters and letters[0].isupper():
            capital = 2 if len(letters) > 1 and all(letter.isupper() for letter in letters) else 1
        if any(letter.isdigit() for letter in piece):
            capital = 0
        words += spoken
        marks += [0] * (len(spoken) - 1) + [mark]
        capitals += [IGNORE_INDEX if len(words) == len(spoken) else capital] + [capital] * (len(spoken) - 1)
    if marks and sentence.rstrip(_CLOSING)[-1:] == ".":
        marks[-1] = 2
    return TaggedWords(tuple(words), tuple(marks), tuple(capitals))


def tagged_sentences(paths: Iterable[Path]) -> Iterator[TaggedWords]:
    """Every sentence of the files that is written with capitals and closed by a mark."""
    for path in paths:
        for line in open_text(path):
            for sentence in sentences(line.strip()):
                if not sentence[:1].isalpha() or not sentence[0].isupper() or sentence.isupper():
                    continue
                found = tag_sentence(sentence)
                if len(found.words) >= 2 and found.marks[-1] in (1, 2, 3):
                    yield found
