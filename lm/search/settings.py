"""The knobs of the search: one frozen value with its defaults and its checks."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from lm.errors import LanguageError
from lm.search.hotwords import Hotword

MAX_WIDTH = 2048
CARD_SETTINGS = (
    "width",
    "token_floor",
    "beam_spread",
    "blank_penalty",
    "lm_weight",
    "word_bonus",
    "unknown_penalty",
)
"""What depends on how sure an acoustic model is: its card may name these, under `search`."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """All weights are in nats, except `lm_weight`, which multiplies KenLM's score (in nats too)."""

    width: int = 64
    """How many readings stay alive, 1 to 2048."""
    token_floor: float = -5.0
    """Labels less probable than this (natural log) in a frame are not tried there; the best one always is."""
    beam_spread: float = 10.0
    """A reading this much worse than the best is dropped."""
    blank_penalty: float = 0.0
    """Subtracted in each frame in which nothing is written: a model in doubt leaves letters out."""
    lm_weight: float = 0.3
    word_bonus: float = 1.0
    """Added once for each word: the language model alone prefers few words."""
    unknown_penalty: float = 10.0
    """Subtracted once for each word that the language model does not know; each of its letters from the first one on
    that no known word goes on with costs besides what an even guess among all of them does, times `lm_weight`."""
    partial_agreement: float = 0.0
    """While an utterance goes on, a word is told once this share of all readings' probability stands behind it; its
    first word at once."""
    n_best: int = 1
    hotwords: tuple[Hotword, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_WIDTH:
            raise LanguageError(f"The search width is {self.width}: expected 1 to {MAX_WIDTH}.")
        if not 1 <= self.n_best <= self.width:
            raise LanguageError(
                f"n_best is {self.n_best}: expected 1 to the width of the search, {self.width}."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise LanguageError(f"{field.name} is {value}: expected a finite number.")
        if min(self.lm_weight, self.unknown_penalty, self.blank_penalty) < 0:
            raise LanguageError("lm_weight, unknown_penalty and blank_penalty may not be negative.")
        if not 0 <= self.partial_agreement <= 1:
            raise LanguageError(f"partial_agreement is {self.partial_agreement}: expected a share, 0 to 1.")
        if self.token_floor > 0:
            raise LanguageError(f"token_floor is {self.token_floor}: a natural logarithm is at most 0.")
        if not 0 < self.beam_spread <= 600:
            raise LanguageError(
                f"beam_spread is {self.beam_spread}: expected more than 0 and at most 600 nats."
            )


def settings_from_card(card: Mapping[str, Any]) -> SearchSettings:
    """The settings that an acoustic model's card says suit it; the defaults where it names none.

    A model that often hears one letter for another needs more readings and more of the language model than one that
    is nearly always sure.
    """
    named = card.get("search", {})
    if not isinstance(named, Mapping):
        raise LanguageError(f"The model's card says {named!r} under `search`: expected a table of settings.")
    given: dict[str, Any] = {}
    for name, value in named.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name not in CARD_SETTINGS or not number:
            raise LanguageError(
                f"The model's card has {value!r} for the search's {name!r}: "
                f"expected numbers for {', '.join(CARD_SETTINGS)}."
            )
        given[name] = int(value) if name == "width" else float(value)
    return SearchSettings(**given)


def parse_search_settings(texts: Iterable[str]) -> dict[str, float]:
    """`NAME=VALUE` as somebody typed them, checked: what a card keeps under `search`."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in CARD_SETTINGS:
            raise LanguageError(f"{text!r} sets nothing of the search: expected {', '.join(CARD_SETTINGS)}.")
        try:
            found[name] = float(value)
        except ValueError:
            raise LanguageError(
                f"{text!r} is no setting: expected NAME=VALUE, such as lm_weight=0.5."
            ) from None
    settings_from_card({"search": found})
    return found
