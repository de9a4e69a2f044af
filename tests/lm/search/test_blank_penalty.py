"""The blank penalty favors hypotheses with more characters."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lm.decoders import SearchSettings
from lm.errors import LanguageError
from lm.search.beam import BeamDecoder
from tests.lm.matrices import all_alignments

SMALL = " ab"
UNPRUNED = SearchSettings(width=2048, n_best=2048, token_floor=-600.0, beam_spread=600.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_penalty_applies_to_every_blank_of_an_alignment(seed: int) -> None:
    """The scores equal those for frames with a smaller blank probability."""
    penalty = 0.7
    frames = np.log(np.random.default_rng(seed).dirichlet(np.full(4, 0.6), 5)).astype(np.float32)
    frames = np.minimum(frames, math.log(0.98))  # the penalty does not apply to frames that are surely blank
    lowered = frames.copy()
    lowered[:, -1] -= penalty
    expected = all_alignments(lowered, SMALL)
    utterance = BeamDecoder(SMALL).start(replace(UNPRUNED, blank_penalty=penalty))
    utterance.push(frames)
    hypotheses = utterance.finish()
    assert {hypothesis.text for hypothesis in hypotheses} == set(expected)
    for hypothesis in hypotheses:
        assert math.isclose(math.exp(hypothesis.score), expected[hypothesis.text], rel_tol=1e-5)


def test_a_penalty_restores_a_deleted_character() -> None:
    frames = np.log(
        np.array([[0.01, 0.95, 0.01, 0.03], [0.02, 0.02, 0.4, 0.56], [0.01, 0.01, 0.01, 0.97]], np.float32)
    )
    found = []
    for penalty in (0.0, 1.0):
        utterance = BeamDecoder(SMALL).start(SearchSettings(blank_penalty=penalty))
        utterance.push(frames)
        found.append(utterance.finish()[0].text)
    assert found == ["a", "ab"]


def test_a_negative_penalty_is_refused() -> None:
    with pytest.raises(LanguageError, match="blank_penalty"):
        SearchSettings(blank_penalty=-0.1)
