"""Long recordings are cut where nobody speaks, and how their log-probabilities came in pieces changes no word."""

import numpy as np
import pytest

from lm.decoders import open_decoder
from lm.search_settings import SearchSettings
from service.offline import NEVER, CutRules, TimedWord, utterances_of, words_of

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"


def spoken(text: str, frames_a_letter: int = 4) -> np.ndarray:
    """Sure log-probabilities of a text: each letter, then blank; `_` is a second of silence."""
    rows = []
    for letter in text:
        if letter == "_":
            rows += [28] * 50
        else:
            rows += [ALPHABET.index(letter)] * 2 + [28] * (frames_a_letter - 2)
    log_probs = np.full((len(rows), 29), np.log(1e-4), np.float32)
    log_probs[np.arange(len(rows)), rows] = np.log(1 - 28e-4)
    return log_probs


def heard(pieces: list[np.ndarray], rules: CutRules = CutRules()) -> list[TimedWord]:  # noqa: B008 (frozen)
    return list(words_of(pieces, open_decoder("greedy", ALPHABET), SearchSettings(), ALPHABET, rules))


def test_words_carry_their_place_in_the_recording() -> None:
    words = heard([spoken("_hello_ world_")])
    assert [word.text for word in words] == ["hello", "world"]
    assert words[0].start_s == pytest.approx(1.0, abs=0.05)
    assert words[1].start_s == pytest.approx(1.0 + 0.4 + 1.0 + 0.08, abs=0.05)


def test_pauses_cut_long_recordings_without_losing_or_moving_a_word() -> None:
    log_probs = spoken("good morning to you all_ " * 12)
    whole = heard([log_probs], NEVER)
    cut = heard([log_probs], CutRules(long_s=3.0, pause_s=0.4, longest_s=9.0))
    assert len(whole) == 60
    assert [word.text for word in cut] == [word.text for word in whole]
    assert [word.start_s for word in cut] == [word.start_s for word in whole]


def test_a_pause_ends_an_utterance_of_some_seconds_and_none_of_a_word_or_two() -> None:
    decoder = open_decoder("greedy", ALPHABET)
    log_probs = spoken("yes_ " + "good morning to you all " * 4 + "_ good night")
    ended = utterances_of([log_probs], decoder, SearchSettings(), ALPHABET)
    said = [" ".join(word.text for word in words) for words in ended]
    assert said == ["yes" + " good morning to you all" * 4, "good night"]


def test_the_pieces_make_no_difference() -> None:
    log_probs = spoken("good morning to you all_ " * 6)
    rules = CutRules(long_s=3.0, pause_s=0.4, longest_s=9.0)
    pieces = np.array_split(log_probs, 37)
    assert heard(pieces, rules) == heard([log_probs], rules)


def test_speech_without_a_pause_is_cut_at_last() -> None:
    class Counting:
        started = 0
        longest = 0

        def __init__(self) -> None:
            self.inner = open_decoder("greedy", ALPHABET)

        def start(self, settings: SearchSettings) -> object:
            Counting.started += 1
            return self.inner.start(settings)

    decoder = Counting()
    log_probs = spoken("a" * 1_000, frames_a_letter=2)  # 40 s in which no frame is silent
    rules = CutRules(long_s=3.0, pause_s=0.4, longest_s=9.0)
    list(words_of([log_probs], decoder, SearchSettings(), ALPHABET, rules))  # type: ignore[arg-type]
    assert Counting.started == 5
    assert heard([], rules) == []
