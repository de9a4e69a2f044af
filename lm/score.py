"""How far what was heard is from what was said: word and character errors, and the alignment behind them.

Both texts are compared as they stand; pass them through lm.text.normalize.normalize first when they come from people.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["same", "substitution", "insertion", "deletion"]
_Costs = NDArray[np.int64]
_DIAGONAL, _DOWN, _RIGHT = 0, 1, 2


@dataclass(frozen=True)
class ErrorCounts:
    """Errors over a number of reference words (or characters); counts of several texts add up."""

    words: int = 0
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    @property
    def errors(self) -> int:
        """All three kinds together."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """Errors a reference word; with an empty reference, errors as if it had one word."""
        return self.errors / max(self.words, 1)

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            self.words + other.words,
            self.substitutions + other.substitutions,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
        )


@dataclass(frozen=True)
class Edit:
    """One step of an alignment; the side that has no item there is None."""

    kind: Kind
    reference: str | None
    hypothesis: str | None


def word_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """The fewest word edits that turn the reference into the hypothesis."""
    return _count(reference.split(), hypothesis.split())


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """The same over characters, with runs of white space as one space; `words` then counts characters."""
    return _count(list(" ".join(reference.split())), list(" ".join(hypothesis.split())))


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Edit]:
    """The edits in order: as few as can be, and among those as many words in common as can be."""
    moves = _moves(reference, hypothesis)
    edits: list[Edit] = []
    row, column = len(reference), len(hypothesis)
    while row or column:
        move = moves[row, column]
        if move == _DIAGONAL:
            row, column = row - 1, column - 1
            kind: Kind = "same" if reference[row] == hypothesis[column] else "substitution"
            edits.append(Edit(kind, reference[row], hypothesis[column]))
        elif move == _DOWN:
            row -= 1
            edits.append(Edit("deletion", reference[row], None))
        else:
            column -= 1
            edits.append(Edit("insertion", None, hypothesis[column]))
    return edits[::-1]


def _count(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """What `align` finds, counted without its table, which for an hour of characters would take gigabytes."""
    if list(reference) == list(hypothesis):
        return ErrorCounts(len(reference))
    edit = _edit_cost(reference, hypothesis)
    cost = len(hypothesis) * edit
    for best, _, _ in _rows(reference, hypothesis):
        cost = int(best[-1])
    edits, substitutions = divmod(cost, edit)
    insertions = (edits - substitutions + len(hypothesis) - len(reference)) // 2
    return ErrorCounts(len(reference), substitutions, insertions, edits - substitutions - insertions)


def _moves(reference: Sequence[str], hypothesis: Sequence[str]) -> NDArray[np.uint8]:
    """For each cell of the edit-distance table, where its best path comes from (one byte a cell)."""
    moves = np.full((len(reference) + 1, len(hypothesis) + 1), _RIGHT, dtype=np.uint8)
    for row, (best, diagonal, down) in enumerate(_rows(reference, hypothesis), start=1):
        moves[row][best == down] = _DOWN
        moves[row, 1:][best[1:] == diagonal] = _DIAGONAL
    return moves


def _edit_cost(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Fewest edits first, then fewest substitutions: one edit outweighs every substitution there can be."""
    return len(reference) + len(hypothesis) + 1


def _rows(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[tuple[_Costs, _Costs, _Costs]]:
    """What the paths to the cells of each row but the first cost: the best of each, those that end with a diagonal step
    (but for the first column), and those that end with a step down."""
    numbers: dict[str, int] = {}
    left = [numbers.setdefault(item, len(numbers)) for item in reference]
    right = np.array([numbers.setdefault(item, len(numbers)) for item in hypothesis], dtype=np.int64)
    edit = _edit_cost(reference, hypothesis)
    columns = np.arange(len(hypothesis) + 1) * edit
    cost = columns.copy()
    for item in left:
        diagonal = cost[:-1] + (right != item) * (edit + 1)
        down = cost + edit
        best = down.copy()
        best[1:] = np.minimum(diagonal, down[1:])
        # A step to the right costs one edit: the running minimum of (cost - column) spreads it at once.
        cost = np.minimum.accumulate(best - columns) + columns
        yield cost, diagonal, down
