"""The look-ahead score improves which prefixes a narrow beam keeps, and does not change final scores."""

import math

import numpy as np
import pytest

from lm.decoders import Hotword, SearchSettings
from lm.hypothesis import Hypothesis
from lm.ngram.trie import NGram
from lm.search.beam import BeamDecoder
from tests.lm.conftest import ALPHABET
from tests.lm.matrices import frames_for


def without_look_ahead(ngram: NGram) -> BeamDecoder:
    decoder = BeamDecoder(ALPHABET, ngram)
    none = np.zeros_like(decoder.lexicon.look_ahead)
    none.flags.writeable = False
    decoder.lexicon = decoder.lexicon._replace(look_ahead=none)
    return decoder


def decode(decoder: BeamDecoder, search: SearchSettings, seed: int) -> tuple[Hypothesis, ...]:
    utterance = decoder.start(search)
    utterance.push(
        frames_for("a bad band and a dam on ", ALPHABET, np.random.default_rng(seed), sharpness=1.5)
    )
    return utterance.finish()


def test_look_ahead_improves_narrow_beams(tiny: NGram) -> None:
    search = SearchSettings(width=12, beam_spread=30.0, lm_weight=0.8, word_bonus=1.0)
    with_look_ahead, without = BeamDecoder(ALPHABET, tiny), without_look_ahead(tiny)
    gains = [
        decode(with_look_ahead, search, seed)[0].score - decode(without, search, seed)[0].score
        for seed in range(20)
    ]
    assert sum(gain > 1e-9 for gain in gains) > 2 * sum(gain < -1e-9 for gain in gains)
    assert sum(gains) > 0


@pytest.mark.parametrize("hotwords", [(), (Hotword("dambat", 4.0), Hotword("a bad", 2.0))])
def test_look_ahead_does_not_change_final_scores(tiny: NGram, hotwords: tuple[Hotword, ...]) -> None:
    """Without pruning, all hypotheses have the same score with and without look-ahead."""
    search = SearchSettings(
        width=2048, n_best=200, token_floor=-600.0, beam_spread=600.0, unknown_penalty=3.0, hotwords=hotwords
    )
    frames = np.log(np.random.default_rng(5).dirichlet(np.full(len(ALPHABET) + 1, 0.5), 3)).astype(np.float32)
    found = []
    for decoder in (BeamDecoder(ALPHABET, tiny), without_look_ahead(tiny)):
        utterance = decoder.start(search)
        utterance.push(frames)
        found.append({hypothesis.text: hypothesis.score for hypothesis in utterance.finish()})
    shared = found[0].keys() & found[1].keys()
    assert len(shared) > 190
    assert all(math.isclose(found[0][text], found[1][text], abs_tol=1e-6) for text in shared)


def test_an_incomplete_word_has_the_score_of_its_most_probable_completion(tiny: NGram) -> None:
    decoder = BeamDecoder(ALPHABET, tiny)
    utterance = decoder.start(SearchSettings(width=1, lm_weight=0.5))
    frames = np.full((1, len(ALPHABET) + 1), -30.0, np.float32)
    frames[0, ALPHABET.index("b")] = 0.0
    utterance.push(frames)
    oracle = tiny.kenlm()
    words = [word.decode() for word in tiny.vocabulary().tolist() if word.startswith(b"b")]
    likeliest = max(oracle.score(word, bos=False, eos=False) for word in words)
    best = utterance.best()
    assert math.isclose(best.score - best.acoustic_score, 0.5 * math.log(10) * likeliest, abs_tol=1e-5)
