"""The bounds of a recipe's values, in words: a value outside them is refused before anything is read or trained."""

from collections.abc import Callable
from dataclasses import dataclass

from training.errors import TrainingError


@dataclass(frozen=True)
class Bound:
    """What a number must be, as it is said and as it is asked."""

    words: str
    holds: Callable[[float], bool]


ONE_OR_MORE = Bound("1 or more", lambda value: value >= 1)
NOUGHT_OR_MORE = Bound("0 or more", lambda value: value >= 0)
ABOVE_NOUGHT = Bound("above 0", lambda value: value > 0)
SHARE = Bound("between 0 and 1", lambda value: 0 <= value <= 1)
BELOW_ONE = Bound("0 or more and below 1", lambda value: 0 <= value < 1)


def check(part: str, values: object, bound: Bound, *names: str) -> None:
    """Those values of a part lie within the bound; of a list every one does."""
    for name in names:
        value = getattr(values, name)
        if not all(bound.holds(one) for one in (value if isinstance(value, tuple) else (value,))):
            shown = list(value) if isinstance(value, tuple) else value
            raise TrainingError(f"{part}.{name} is {shown}: expected {bound.words}.")
