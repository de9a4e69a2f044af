"""Lines in which words are spelled, codes and numbers read out: what people dictate and texts hardly hold.

Without such lines a letter after a letter is a surprise to a language model, and it talks the search out of spelling.
"""

import random
from collections.abc import Iterable, Iterator

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ZERO = ("zero", "oh")
PLACES = ("street", "road", "avenue", "drive", "lane")
NUMBER_LENGTHS = (3, 4, 4, 5, 5, 5, 7, 10)
SPELLED_LENGTHS = range(2, 11)


def spelled_lines(words: Iterable[str], count: int) -> Iterator[str]:
    """So many lines, always the same for the same words (and one version of Python); none where no word can be spelled:
    two to ten plain letters."""
    draw = random.Random(1)
    known = sorted({word for word in words if len(word) in SPELLED_LENGTHS and set(word) <= set(LETTERS)})
    if not known:
        return
    for _ in range(count):
        word = draw.choice(known)
        kind = draw.random()
        if kind < 0.40:  # h e r o n
            said = list(word)
        elif kind < 0.55:  # heron h e r o n
            said = [word, *word]
        elif kind < 0.70:  # four oh nine two
            said = _digits(draw, draw.choice(NUMBER_LENGTHS))
        elif kind < 0.80:  # k m four seven
            said = [*_letters(draw, draw.randint(2, 4)), *_digits(draw, draw.randint(1, 4))]
        elif kind < 0.90:  # q r b
            said = _letters(draw, draw.randint(2, 6))
        else:  # six two heron street
            said = [*_digits(draw, draw.randint(1, 4)), word, draw.choice(PLACES)]
        yield " ".join(said)


def _letters(draw: random.Random, count: int) -> list[str]:
    return draw.choices(LETTERS, k=count)


def _digits(draw: random.Random, count: int) -> list[str]:
    """Nought is read out as `zero` or `oh`."""
    return [draw.choice(DIGITS) if draw.random() < 0.9 else draw.choice(ZERO) for _ in range(count)]
