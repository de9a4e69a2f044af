"""Word and character error counts: known examples and the properties of the edit distance."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lm.score import ErrorCounts, align, character_errors, word_errors

_TEXTS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=8).map(" ".join)


def _distance(left: list[str], right: list[str]) -> int:
    """The Levenshtein distance by the recursive definition, row by row."""
    row = list(range(len(right) + 1))
    for first, item in enumerate(left, start=1):
        before, row[0] = row[0], first
        for second, other in enumerate(right, start=1):
            before, row[second] = (
                row[second],
                min(row[second] + 1, row[second - 1] + 1, before + (item != other)),
            )
    return row[-1]


def test_substitutions_insertions_and_deletions_are_counted() -> None:
    counts = word_errors("the cat sat on the mat", "the cat sit on mat now")
    assert counts == ErrorCounts(words=6, substitutions=1, insertions=1, deletions=1)
    assert counts.errors == 3
    assert counts.rate == 0.5


def test_counts_add_up() -> None:
    parts = [("a b c", "a c"), ("d", "d e"), ("", "x")]
    total = sum((word_errors(*part) for part in parts), ErrorCounts())
    assert total == ErrorCounts(words=4, substitutions=0, insertions=2, deletions=1)


def test_empty_texts() -> None:
    assert word_errors("", "").rate == 0.0
    assert word_errors("", "one two").rate == 2.0
    assert word_errors("one two", "") == ErrorCounts(words=2, deletions=2)


def test_runs_of_spaces_count_as_one_character() -> None:
    assert character_errors("ab  cd", "ab cd") == ErrorCounts(words=5)
    assert character_errors("ab cd", "abcd") == ErrorCounts(words=5, deletions=1)


@settings(max_examples=200, deadline=None)
@given(_TEXTS, _TEXTS)
def test_counts_match_the_alignment(reference: str, hypothesis: str) -> None:
    kinds = [edit.kind for edit in align(reference.split(), hypothesis.split())]
    counts = word_errors(reference, hypothesis)
    assert counts.substitutions == kinds.count("substitution")
    assert (counts.insertions, counts.deletions) == (kinds.count("insertion"), kinds.count("deletion"))


@settings(max_examples=200, deadline=None)
@given(_TEXTS, _TEXTS)
def test_the_number_of_edits_is_the_levenshtein_distance(reference: str, hypothesis: str) -> None:
    left, right = reference.split(), hypothesis.split()
    counts = word_errors(reference, hypothesis)
    assert counts.errors == _distance(left, right)
    assert len(left) - counts.deletions + counts.insertions == len(right)
    edits = align(left, right)
    assert [edit.reference for edit in edits if edit.reference is not None] == left
    assert [edit.hypothesis for edit in edits if edit.hypothesis is not None] == right
    assert all((edit.kind == "same") == (edit.reference == edit.hypothesis) for edit in edits)
