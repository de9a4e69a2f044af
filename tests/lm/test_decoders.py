"""One door to three decoders: they agree where they should, and the door says what it does not know."""

import math
from pathlib import Path

import numpy as np
import pytest

import lm
from lm import numba_cache
from lm.decoders import Decoder, SearchSettings, open_decoder
from lm.errors import LanguageError
from lm.hypothesis import Hypothesis
from lm.ngram.trie import NGram
from tests.lm.conftest import ALPHABET
from tests.lm.matrices import random_frames, spoken

WIDE = SearchSettings(width=512, token_floor=-30.0, beam_spread=80.0, lm_weight=0.6, word_bonus=1.2)
SMALL = " abn"


def finished(decoder: Decoder, frames: np.ndarray, search: SearchSettings) -> Hypothesis:
    utterance = decoder.start(search)
    utterance.push(frames)
    return utterance.finish()[0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("language", [True, False])
def test_pyctcdecode_hears_the_same_with_the_same_score(tiny: NGram, seed: int, language: bool) -> None:
    frames = random_frames(np.random.default_rng(seed), 8, 5, 2.0)
    # Speech ends in a letter here: of "word" and "word " pyctcdecode may keep the one whose last word it then scores
    # as an unknown empty one.
    frames[-1] = -100.0
    frames[-1, SMALL.index("n")] = 0.0
    ngram = tiny if language else None
    ours = finished(open_decoder("beam", SMALL, ngram), frames, WIDE)
    theirs = finished(open_decoder("pyctcdecode", SMALL, ngram), frames, WIDE)
    assert ours.text == theirs.text
    assert math.isclose(ours.score, theirs.score, abs_tol=2e-3)
    assert math.isclose(ours.acoustic_score, theirs.acoustic_score, abs_tol=2e-3)


@pytest.mark.parametrize("seed", range(3))
def test_all_three_hear_clear_speech_alike(tiny: NGram, seed: int) -> None:
    text = "the quick brown fox plays on and on"
    frames = spoken(text, ALPHABET, np.random.default_rng(seed), 11.0)
    for kind in ("beam", "greedy", "pyctcdecode"):
        heard = finished(open_decoder(kind, ALPHABET, tiny), frames, SearchSettings())  # type: ignore[arg-type]
        assert heard.text == text
        assert [word.text for word in heard.words] == text.split()


def test_the_spans_of_pyctcdecode_and_ours_are_close(tiny: NGram) -> None:
    frames = spoken("a bad man and a band", ALPHABET, np.random.default_rng(2), 11.0)
    ours, theirs = (
        finished(open_decoder(kind, ALPHABET, tiny), frames, SearchSettings()).words  # type: ignore[arg-type]
        for kind in ("beam", "pyctcdecode")
    )
    for one, other in zip(ours, theirs, strict=True):
        assert abs(one.first_frame - other.first_frame) <= 1
        assert abs(one.end_frame - other.end_frame) <= 2


@pytest.mark.parametrize("alphabet", ["", "aa", " abca"])
def test_an_alphabet_must_name_each_character_once(alphabet: str) -> None:
    with pytest.raises(LanguageError, match="alphabet"):
        open_decoder("beam", alphabet)


def test_an_unknown_decoder_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LanguageError, match="beam, greedy, pyctcdecode"):
        open_decoder("magic", ALPHABET)  # type: ignore[arg-type]


def test_a_language_model_needs_an_alphabet_it_can_spell(tiny: NGram) -> None:
    with pytest.raises(LanguageError, match="ASCII"):
        open_decoder("beam", " aäb", tiny)
    with pytest.raises(LanguageError, match="at most 64"):
        open_decoder("beam", "".join(map(chr, range(33, 120))), tiny)


def test_every_file_of_kernels_counts_for_the_cache() -> None:
    package = Path(lm.__file__).parent
    kernels = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for path in package.rglob("*.py")
        if "\n@compiled" in path.read_text()
    }
    assert kernels and kernels <= set(numba_cache.KERNEL_MODULES)
