"""Generates training lines with spelled words, codes and numbers, which people dictate but texts rarely contain.

Without such lines an n-gram gives sequences of letters a low probability, and the search avoids them.
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
    """`count` lines, deterministic for a set of words (and a Python version). Words of two to ten letters a to z are
    used; without any, there are no lines."""
    rng = random.Random(1)
    candidates = sorted(
        {word for word in words if len(word) in SPELLED_LENGTHS and set(word) <= set(LETTERS)}
    )
    if not candidates:
        return
    for _ in range(count):
        word = rng.choice(candidates)
        kind = rng.random()
        if kind < 0.40:  # h e r o n
            line = list(word)
        elif kind < 0.55:  # heron h e r o n
            line = [word, *word]
        elif kind < 0.70:  # four oh nine two
            line = _digits(rng, rng.choice(NUMBER_LENGTHS))
        elif kind < 0.80:  # k m four seven
            line = [*_letters(rng, rng.randint(2, 4)), *_digits(rng, rng.randint(1, 4))]
        elif kind < 0.90:  # q r b
            line = _letters(rng, rng.randint(2, 6))
        else:  # six two heron street
            line = [*_digits(rng, rng.randint(1, 4)), word, rng.choice(PLACES)]
        yield " ".join(line)


def _letters(rng: random.Random, count: int) -> list[str]:
    return rng.choices(LETTERS, k=count)


def _digits(rng: random.Random, count: int) -> list[str]:
    """Spoken digits. 0 is `zero` or `oh`."""
    return [rng.choice(DIGITS) if rng.random() < 0.9 else rng.choice(ZERO) for _ in range(count)]
