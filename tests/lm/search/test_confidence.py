"""Confidences stay between 0 and 1 and rise with the evidence; benchmarks/calibration.py shows them calibrated."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.search.confidence import word_confidence
from lm.search.prefix_tree import confidence_of

PEAKS = st.floats(-20.0, 0.0)


@given(
    mean=PEAKS, least=PEAKS, letters=st.integers(1, 60), language=st.floats(-30.0, 0.0) | st.just(math.nan)
)
def test_always_a_probability_and_the_same_compiled(
    mean: float, least: float, letters: int, language: float
) -> None:
    value = word_confidence(mean, least, letters, language)
    assert 0.0 <= value <= 1.0
    assert math.isclose(confidence_of(mean, least, letters, language), value, rel_tol=1e-9)


@pytest.mark.parametrize("language", [-3.0, math.nan])
def test_clear_letters_are_surer_than_doubtful_ones(language: float) -> None:
    doubts = [-1.0, -0.5, -0.1, -0.01, -0.001]
    values = [word_confidence(doubt / 3, doubt, 5, language) for doubt in doubts]
    assert values == sorted(values)
    assert values[-1] > 0.98
    assert values[0] < 0.9


def test_a_word_the_language_model_expects_is_surer() -> None:
    assert word_confidence(-0.1, -0.3, 5, -1.0) > word_confidence(-0.1, -0.3, 5, -6.0)
