"""Phrases that a stream wants to hear, and their weights. What the alphabet cannot spell is refused."""

from collections.abc import Iterable
from dataclasses import dataclass

from lm.errors import LanguageError


@dataclass(frozen=True, slots=True)
class Hotword:
    """A phrase of one or more words, and how many nats hearing it is worth (negative: rather not)."""

    phrase: str
    weight: float = 5.0


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
        if not -1000.0 <= hotword.weight <= 1000.0:
            raise LanguageError(
                f"The weight of the hotword {hotword.phrase!r} is {hotword.weight}: expected nats "
                "between -1000 and 1000, usually 2 to 10."
            )
        result.append(Hotword(phrase, float(hotword.weight)))
    return tuple(result)
