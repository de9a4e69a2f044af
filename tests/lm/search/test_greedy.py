"""Greedy decoding: the best labels, collapsed, for any slicing."""

import math
from itertools import groupby, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.decoders import open_decoder
from tests.lm.conftest import ALPHABET
from tests.lm.matrices import frames_for, random_frames


def collapsed(frames: np.ndarray) -> str:
    labels = [label for label, _ in groupby(frames.argmax(axis=1).tolist()) if label != len(ALPHABET)]
    return " ".join("".join(ALPHABET[label] for label in labels).split())


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 80), max_size=10))
def test_slicing_does_not_change_the_collapsed_best_labels(seed: int, cuts: list[int]) -> None:
    frames = random_frames(np.random.default_rng(seed), 80, 29, 2.0)
    decoder = open_decoder("greedy", ALPHABET)
    one_push, sliced = decoder.start(), decoder.start()
    one_push.push(frames)
    edges = [0, *sorted(cuts), len(frames)]
    for begin, end in pairwise(edges):
        sliced.push(frames[begin:end])
    assert sliced.best() == one_push.best()
    assert sliced.finish() == one_push.finish()
    assert one_push.best().text == collapsed(frames)


def test_words_before_the_last_space_are_stable() -> None:
    frames = frames_for("a band plays on", ALPHABET, np.random.default_rng(1), 12.0)
    utterance = open_decoder("greedy", ALPHABET).start()
    committed: tuple[object, ...] = ()
    for frame in frames:
        utterance.push(frame[None])
        best = utterance.best()
        assert best.words[: len(committed)] == committed
        assert best.stable_words == max(0, len(best.words) - 1) or best.stable_words == len(best.words)
        committed = best.words[: best.stable_words]
    (final,) = utterance.finish()
    assert final.text == "a band plays on"
    assert final.stable_words == 4


def test_score_and_frames_of_the_best_path() -> None:
    labels = [28, 3, 3, 28, 1, 20, 28, 0, 1, 28]
    frames = np.full((len(labels), 29), math.log(1e-4), np.float32)
    frames[np.arange(len(labels)), labels] = math.log(0.9)
    utterance = open_decoder("greedy", ALPHABET).start()
    utterance.push(frames)
    (final,) = utterance.finish()
    assert math.isclose(final.score, len(labels) * math.log(0.9), rel_tol=1e-5)
    assert [(word.text, word.first_frame, word.end_frame) for word in final.words] == [
        ("cat", 1, 6),
        ("a", 8, 9),
    ]
