"""Word confidence is a probability and rises with the evidence. benchmarks/calibration.py measures its calibration."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.search.confidence import word_confidence
from lm.search.prefix_tree import confidence_of

PEAKS = st.floats(-20.0, 0.0)


@given(
    mean=PEAKS,
    lowest=PEAKS,
    characters=st.integers(1, 60),
    lm_score=st.floats(-30.0, 0.0) | st.just(math.nan),
)
def test_confidence_is_a_probability_and_equal_when_compiled(
    mean: float, lowest: float, characters: int, lm_score: float
) -> None:
    value = word_confidence(mean, lowest, characters, lm_score)
    assert 0.0 <= value <= 1.0
    assert math.isclose(confidence_of(mean, lowest, characters, lm_score), value, rel_tol=1e-9)


@pytest.mark.parametrize("lm_score", [-3.0, math.nan])
def test_confidence_rises_with_the_peaks(lm_score: float) -> None:
    peaks = [-1.0, -0.5, -0.1, -0.01, -0.001]
    values = [word_confidence(peak / 3, peak, 5, lm_score) for peak in peaks]
    assert values == sorted(values)
    assert values[-1] > 0.98
    assert values[0] < 0.9


def test_confidence_rises_with_the_lm_score() -> None:
    assert word_confidence(-0.1, -0.3, 5, -1.0) > word_confidence(-0.1, -0.3, 5, -6.0)
