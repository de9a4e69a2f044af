"""A price on writing nothing: readings with more letters in them gain, by what they do not pay."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lm.decoders import SearchSettings
from lm.errors import LanguageError
from lm.search.beam import BeamDecoder
from tests.lm.matrices import all_readings

SMALL = " ab"
UNPRUNED = SearchSettings(width=2048, n_best=2048, token_floor=-600.0, beam_spread=600.0)


@pytest.mark.parametrize("seed", range(3))
def test_every_reading_pays_for_the_blanks_of_its_alignments(seed: int) -> None:
    """As if the blank's probability had been smaller from the beginning."""
    penalty = 0.7
    frames = np.log(np.random.default_rng(seed).dirichlet(np.full(4, 0.6), 5)).astype(np.float32)
    frames = np.minimum(frames, math.log(0.98))  # what is blank beyond doubt costs all readings the same
    lowered = frames.copy()
    lowered[:, -1] -= penalty
    expected = all_readings(lowered, SMALL)
    utterance = BeamDecoder(SMALL).start(replace(UNPRUNED, blank_penalty=penalty))
    utterance.push(frames)
    readings = utterance.finish()
    assert {reading.text for reading in readings} == set(expected)
    for reading in readings:
        assert math.isclose(math.exp(reading.score), expected[reading.text], rel_tol=1e-5)


def test_a_letter_in_doubt_is_written_once_silence_has_a_price() -> None:
    frames = np.log(
        np.array([[0.01, 0.95, 0.01, 0.03], [0.02, 0.02, 0.4, 0.56], [0.01, 0.01, 0.01, 0.97]], np.float32)
    )
    found = []
    for penalty in (0.0, 1.0):
        utterance = BeamDecoder(SMALL).start(SearchSettings(blank_penalty=penalty))
        utterance.push(frames)
        found.append(utterance.finish()[0].text)
    assert found == ["a", "ab"]


def test_a_prize_for_silence_is_refused() -> None:
    with pytest.raises(LanguageError, match="blank_penalty"):
        SearchSettings(blank_penalty=-0.1)
