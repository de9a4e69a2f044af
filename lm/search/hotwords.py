"""Hotwords: phrases that get a bonus in the search, their checks, and the automaton that matches them.

The automaton reads a prefix label by label. A phrase matches from the beginning of a word to the end of a word.
While a match is under way the prefix has a partial bonus, in proportion to the labels matched. The full bonus replaces
it where the last word ends; the partial bonus is taken back where the match fails.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError

Array = NDArray[Any]

MAX_WEIGHT = 100.0
MAX_TOTAL_LABELS = 6_000
"""Of all phrases together: a stream's automaton takes about 120 bytes a label."""

BOUNDARY, NO_MATCH = 0, 1
"""The automaton's first states: before a word with nothing matched; inside a word that matches nothing."""


@dataclass(frozen=True, slots=True)
class Hotword:
    """A phrase of one or more words, and its bonus in nats (negative: a penalty)."""

    phrase: str
    weight: float = 5.0


class Automaton(NamedTuple):
    """By state: the state after each label, the partial bonus, the full bonus if a word ends here, and whether the word
    that ends here is part of a phrase (and so is known even if the language model does not have it)."""

    next_state: Array
    partial_bonus: Array
    full_bonus: Array
    known: Array
    max_partial_bonus: float
    max_full_bonus: float


def normalize_hotwords(hotwords: Iterable[Hotword], alphabet: str) -> tuple[Hotword, ...]:
    """The same hotwords in the alphabet's case with single spaces; a phrase with other characters is refused."""
    characters = set(alphabet)
    fold = "a" in characters and "A" not in characters
    result = []
    for hotword in hotwords:
        phrase = " ".join(hotword.phrase.split())
        phrase = phrase.lower() if fold else phrase
        if not phrase:
            raise LanguageError("A hotword is empty: give a word or a phrase.")
        wrong = sorted(set(phrase) - characters)
        if wrong:
            raise LanguageError(
                f"The hotword {hotword.phrase!r} cannot be recognized: the model's alphabet has no "
                f"{', '.join(map(repr, wrong))}. Spell it as it is spoken, for example 'twenty two' for '22'."
            )
        if not -MAX_WEIGHT <= hotword.weight <= MAX_WEIGHT:
            raise LanguageError(
                f"The weight of the hotword {hotword.phrase!r} is {hotword.weight}: expected nats from "
                f"{-MAX_WEIGHT:.0f} to {MAX_WEIGHT:.0f}, usually 2 to 10."
            )
        result.append(Hotword(phrase, float(hotword.weight)))
    if sum(len(hotword.phrase) for hotword in result) > MAX_TOTAL_LABELS:
        raise LanguageError(
            f"The hotwords have more than {MAX_TOTAL_LABELS} characters together: give fewer."
        )
    return tuple(result)


@lru_cache(maxsize=64)
def build_automaton(hotwords: tuple[Hotword, ...], alphabet: str) -> Automaton:
    """After Aho and Corasick (1975), but a match may begin only where a word does."""
    label_of = {character: label for label, character in enumerate(alphabet)}
    space = label_of.get(" ", -1)
    children: list[dict[int, int]] = [{}, {}]
    partial, full, phrase_ends = [0.0, 0.0], [0.0, 0.0], [False, False]
    for hotword in normalize_hotwords(hotwords, alphabet):
        state = BOUNDARY
        for matched, character in enumerate(hotword.phrase, start=1):
            label = label_of[character]
            if label not in children[state]:
                children[state][label] = len(children)
                children.append({})
                partial.append(0.0)
                full.append(0.0)
                phrase_ends.append(False)
            state = children[state][label]
            partial[state] = max(partial[state], hotword.weight * matched / len(hotword.phrase))
        full[state] += hotword.weight
        phrase_ends[state] = True
    next_state = np.full((len(children), len(alphabet)), NO_MATCH, dtype=np.int32)
    known = np.array([end or space in below for end, below in zip(phrase_ends, children, strict=True)])
    if space >= 0:
        next_state[:2, space] = BOUNDARY
    full_bonus = np.array(full)
    fallback = [NO_MATCH] * len(children)
    waiting = [BOUNDARY]
    while waiting:  # breadth first: what a state falls back to is always complete before the state is
        next_waiting = []
        for state in waiting:
            if state != BOUNDARY:
                next_state[state] = next_state[fallback[state]]
                full_bonus[state] += full_bonus[fallback[state]]
                known[state] |= known[fallback[state]]
            for label, child in children[state].items():
                # From the boundary itself a character falls to "no match", as from all that matches nothing.
                fallback[child] = int(next_state[fallback[state], label]) if state != BOUNDARY else NO_MATCH
                next_state[state, label] = child
                next_waiting.append(child)
        waiting = next_waiting
    known[:2] = False
    arrays = (next_state, np.array(partial), full_bonus, known.astype(np.uint8))
    for array in arrays:
        array.flags.writeable = False
    return Automaton(*arrays, max_partial_bonus=max(partial), max_full_bonus=float(full_bonus.max()))
