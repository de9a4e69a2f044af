"""Phrases that a stream wants to hear: their weights, their checks, and the automaton that follows them.

The automaton reads a prefix label by label. A phrase matches from the beginning of a word to the end of a word.
While it is being matched, the prefix is lent part of its weight, in proportion to the labels matched; the loan
becomes a grant where the last word ends, and is taken back where the match fails.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError

Array = NDArray[Any]

LARGEST_WEIGHT = 100.0
MOST_LABELS = 6_000
"""All phrases together: a stream's automaton takes about 120 bytes a label."""

BOUNDARY, NO_MATCH = 0, 1
"""The automaton's first states: before a word with nothing matched; inside a word that matches nothing."""


@dataclass(frozen=True, slots=True)
class Hotword:
    """A phrase of one or more words, and how many nats hearing it is worth (negative: rather not)."""

    phrase: str
    weight: float = 5.0


@dataclass(frozen=True)
class Automaton:
    """By state: the state after each label, the weight lent, the weight granted if a word ends here, and whether
    the word that ends here is part of a phrase (and so is known even if the language model never saw it)."""

    following: Array
    lent: Array
    granted: Array
    known: Array
    largest_loan: float
    largest_grant: float


def spelled(hotwords: Iterable[Hotword], alphabet: str) -> tuple[Hotword, ...]:
    """The same hotwords in the alphabet's case with single spaces; what cannot be spelled is refused."""
    letters = set(alphabet)
    fold = "a" in letters and "A" not in letters
    result = []
    for hotword in hotwords:
        phrase = " ".join(hotword.phrase.split())
        phrase = phrase.lower() if fold else phrase
        if not phrase:
            raise LanguageError("A hotword is empty: give a word or a phrase.")
        wrong = sorted(set(phrase) - letters)
        if wrong:
            raise LanguageError(
                f"The hotword {hotword.phrase!r} cannot be heard: the model's alphabet has no "
                f"{', '.join(map(repr, wrong))}. Spell it as it is spoken, for example 'twenty two' for '22'."
            )
        if not -LARGEST_WEIGHT <= hotword.weight <= LARGEST_WEIGHT:
            raise LanguageError(
                f"The weight of the hotword {hotword.phrase!r} is {hotword.weight}: expected nats from "
                f"{-LARGEST_WEIGHT:.0f} to {LARGEST_WEIGHT:.0f}, usually 2 to 10."
            )
        result.append(Hotword(phrase, float(hotword.weight)))
    if sum(len(hotword.phrase) for hotword in result) > MOST_LABELS:
        raise LanguageError(f"The hotwords have more than {MOST_LABELS} letters together: give fewer.")
    return tuple(result)


@lru_cache(maxsize=64)
def automaton(hotwords: tuple[Hotword, ...], alphabet: str) -> Automaton:
    """After Aho and Corasick (1975), but a match may begin only where a word does."""
    label_of = {character: label for label, character in enumerate(alphabet)}
    space = label_of.get(" ", -1)
    children: list[dict[int, int]] = [{}, {}]
    lent, granted, phrase_ends = [0.0, 0.0], [0.0, 0.0], [False, False]
    for hotword in spelled(hotwords, alphabet):
        state = BOUNDARY
        for matched, character in enumerate(hotword.phrase, start=1):
            label = label_of[character]
            if label not in children[state]:
                children[state][label] = len(children)
                children.append({})
                lent.append(0.0)
                granted.append(0.0)
                phrase_ends.append(False)
            state = children[state][label]
            lent[state] = max(lent[state], hotword.weight * matched / len(hotword.phrase))
        granted[state] += hotword.weight
        phrase_ends[state] = True
    following = np.full((len(children), len(alphabet)), NO_MATCH, dtype=np.int32)
    known = np.array([end or space in below for end, below in zip(phrase_ends, children, strict=True)])
    if space >= 0:
        following[:2, space] = BOUNDARY
    grants = np.array(granted)
    fallback = [NO_MATCH] * len(children)
    waiting = [BOUNDARY]
    while waiting:  # breadth first: what a state falls back to is always complete before the state is
        next_waiting = []
        for state in waiting:
            if state != BOUNDARY:
                following[state] = following[fallback[state]]
                grants[state] += grants[fallback[state]]
                known[state] |= known[fallback[state]]
            for label, child in children[state].items():
                # From the boundary itself a letter falls to "no match", as from all that matches nothing.
                fallback[child] = int(following[fallback[state], label]) if state != BOUNDARY else NO_MATCH
                following[state, label] = child
                next_waiting.append(child)
        waiting = next_waiting
    known[:2] = False
    arrays = (following, np.array(lent), grants, known.astype(np.uint8))
    for array in arrays:
        array.flags.writeable = False
    return Automaton(*arrays, largest_loan=max(lent), largest_grant=float(grants.max()))
