"""Range checks for recipe values. A value out of range is refused before any data is read."""

from collections.abc import Callable
from dataclasses import dataclass

from training.errors import TrainingError


@dataclass(frozen=True)
class Bound:
    """A condition on a number, and its text for the error message."""

    text: str
    accepts: Callable[[float], bool]


POSITIVE = Bound("above 0", lambda value: value > 0)
NON_NEGATIVE = Bound("0 or more", lambda value: value >= 0)
AT_LEAST_ONE = Bound("1 or more", lambda value: value >= 1)
PROBABILITY = Bound("between 0 and 1", lambda value: 0 <= value <= 1)
BELOW_ONE = Bound("0 or more and below 1", lambda value: 0 <= value < 1)


def check(section: str, values: object, bound: Bound, *names: str) -> None:
    """Check the named attributes of `values` against the bound; of a tuple, every element."""
    for name in names:
        value = getattr(values, name)
        if not all(bound.accepts(one) for one in (value if isinstance(value, tuple) else (value,))):
            shown = list(value) if isinstance(value, tuple) else value
            raise TrainingError(f"{section}.{name} is {shown}: expected {bound.text}.")
