"""Word and character error counts of a hypothesis against a reference, and the alignment behind them.

Nothing is normalized here: normalize human transcripts first (lm.text.normalize.normalize).
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
    """Errors over a number of reference words (or characters). Counts of several texts can be added."""

    words: int = 0
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    @property
    def errors(self) -> int:
        """Substitutions, insertions and deletions together."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """The error rate: errors per reference word. An empty reference counts as one word."""
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
    """One step of an alignment. `reference` is None for an insertion, `hypothesis` for a deletion."""

    kind: Kind
    reference: str | None
    hypothesis: str | None


def word_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """The minimum number of word edits that turn the reference into the hypothesis."""
    return _count(reference.split(), hypothesis.split())


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """The same over characters. White space is collapsed to single spaces; `words` counts reference characters."""
    return _count(list(" ".join(reference.split())), list(" ".join(hypothesis.split())))


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Edit]:
    """The edits in order: the minimum number of edits and, among those alignments, the most equal words."""
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
    """The counts of `align` without its table, which would take gigabytes for the characters of an hour."""
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
    """For each cell of the edit-distance table, the step that its best path ends with (one byte per cell)."""
    moves = np.full((len(reference) + 1, len(hypothesis) + 1), _RIGHT, dtype=np.uint8)
    for row, (best, diagonal, down) in enumerate(_rows(reference, hypothesis), start=1):
        moves[row][best == down] = _DOWN
        moves[row, 1:][best[1:] == diagonal] = _DIAGONAL
    return moves


def _edit_cost(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """The cost of an edit. A substitution costs 1 more, so one edit outweighs all substitutions of an alignment."""
    return len(reference) + len(hypothesis) + 1


def _rows(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[tuple[_Costs, _Costs, _Costs]]:
    """For each row of the table but the first: the best cost of each cell, the cost of arriving by a diagonal step
    (without the first column), and the cost of arriving by a step down."""
    ids: dict[str, int] = {}
    left = [ids.setdefault(item, len(ids)) for item in reference]
    right = np.array([ids.setdefault(item, len(ids)) for item in hypothesis], dtype=np.int64)
    edit = _edit_cost(reference, hypothesis)
    columns = np.arange(len(hypothesis) + 1) * edit
    cost = columns.copy()
    for item in left:
        diagonal = cost[:-1] + (right != item) * (edit + 1)
        down = cost + edit
        best = down.copy()
        best[1:] = np.minimum(diagonal, down[1:])
        # A step to the right costs one edit: a running minimum of (cost - column) propagates it along the row.
        cost = np.minimum.accumulate(best - columns) + columns
        yield cost, diagonal, down
