"""Finals as a reader wants them: which of figures, marks and capitals a client asked for, and the server has.

The writing itself is lm/text/formatting.py.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

from lm.text.formatting import FormattedWord, format_words
from lm.text.punctuation.model import Punctuator

Formatter = Callable[[Sequence[str]], Sequence[FormattedWord]]
"""Spoken words to written pieces, each spoken word in exactly one of them."""


@cache
def shipped_punctuator() -> Punctuator | None:
    """Loaded once a process; None when this build carries none."""
    return Punctuator.shipped()


def formatter(figures: bool, punctuate: bool) -> Formatter | None:
    """How finals are to be written; None when as they are heard."""
    punctuator = shipped_punctuator() if punctuate else None
    if not figures and punctuator is None:
        return None
    return partial(format_words, numerals=figures, punctuator=punctuator)
