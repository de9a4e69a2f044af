"""Selects the text formatting of final results: numerals, and punctuation with capitalization.

The formatting itself is in lm/text/formatting.py.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

from lm.text.formatting import FormattedWord, format_words
from lm.text.punctuation.model import Punctuator

Formatter = Callable[[Sequence[str]], Sequence[FormattedWord]]
"""Spoken words to written words; each spoken word is in exactly one of them."""


@cache
def shipped_punctuator() -> Punctuator | None:
    """The shipped punctuation model, loaded once per process; None when this build has none."""
    return Punctuator.shipped()


def formatter(numerals: bool, punctuate: bool) -> Formatter | None:
    """The formatter for these options; None when the words stay as spoken."""
    punctuator = shipped_punctuator() if punctuate else None
    if not numerals and punctuator is None:
        return None
    return partial(format_words, numerals=numerals, punctuator=punctuator)
