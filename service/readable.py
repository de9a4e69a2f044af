"""Finals as a reader wants them: which of figures, marks and capitals a client asked for, and the server has.

The writing itself is lm/readable.py.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

from lm.punctuation.model import Punctuator
from lm.readable import Written, write

Readable = Callable[[Sequence[str]], Sequence[Written]]
"""Spoken words to written pieces, each spoken word in exactly one of them."""


@cache
def shipped_punctuator() -> Punctuator | None:
    """Loaded once a process; None when this build carries none."""
    return Punctuator.shipped()


def readable(figures: bool, punctuate: bool) -> Readable | None:
    """How finals are to be written; None when as they are heard."""
    punctuator = shipped_punctuator() if punctuate else None
    if not figures and punctuator is None:
        return None
    return partial(write, figures=figures, punctuator=punctuator)
