"""The streaming beam search against a brute-force sum over all alignments, and its guarantees for streams."""

import math
import pickle
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.decoders import Hotword, SearchSettings, open_decoder
from lm.errors import LanguageError
from lm.hypothesis import Hypothesis
from lm.ngram.trie import NGram
from lm.search import state
from lm.search.beam import BeamDecoder, BeamUtterance
from tests.lm.conftest import ALPHABET
from tests.lm.matrices import all_alignments, frames_for, random_frames

UNPRUNED = SearchSettings(width=2048, token_floor=-600.0, beam_spread=600.0, n_best=2048)
SMALL = " abn"


def frames_of(seed: int, frames: int, classes: int = 5, sharpness: float = 1.5) -> np.ndarray:
    return random_frames(np.random.default_rng(seed), frames, classes, sharpness)


def unknown_characters(words: list[str], place: int, ngram: NGram, search: SearchSettings) -> int:
    """The number of characters of a word after its longest prefix that a known word or a hotword starts with."""
    word, continuations = words[place], {known.decode() for known in ngram.vocabulary()[1:].tolist()}
    for phrase in (hotword.phrase.split() for hotword in search.hotwords):
        continuations |= {
            phrase[said] for said in range(len(phrase)) if words[:place][place - said :] == phrase[:said]
        }
    prefixes = {other[:length] for other in continuations for length in range(len(other) + 1)}
    return sum(word[: length + 1] not in prefixes for length in range(len(word)))


def expected_nats(text: str, ngram: NGram, search: SearchSettings, alphabet: str) -> float:
    """The nats that language model, bonuses, penalties and hotwords add to a finished text, by definition."""
    words, oracle = text.split(), ngram.kenlm()
    known = {word for hotword in search.hotwords for word in hotword.phrase.split()}
    unknown = [place for place, word in enumerate(words) if word not in oracle and word not in known]
    nats = search.lm_weight * math.log(10) * oracle.score(text) + search.word_bonus * len(words)
    nats -= search.unknown_penalty * len(unknown)
    characters = sum(unknown_characters(words, place, ngram, search) for place in unknown)
    nats -= search.lm_weight * math.log(len(alphabet)) * characters
    for hotword in search.hotwords:
        phrase = hotword.phrase.split()
        starts = range(len(words) - len(phrase) + 1)
        nats += hotword.weight * sum(words[start : start + len(phrase)] == phrase for start in starts)
    return nats


def decode(frames: np.ndarray, decoder: BeamDecoder, search: SearchSettings) -> tuple[Hypothesis, ...]:
    utterance = decoder.start(search)
    utterance.push(frames)
    return utterance.finish()


@pytest.mark.parametrize("seed", range(6))
def test_without_pruning_scores_equal_the_sum_over_all_alignments(seed: int) -> None:
    frames = frames_of(seed, frames=5)
    expected = all_alignments(frames, SMALL)
    hypotheses = decode(frames, BeamDecoder(SMALL), UNPRUNED)
    assert {hypothesis.text for hypothesis in hypotheses} == set(expected)
    for hypothesis in hypotheses:
        assert math.isclose(math.exp(hypothesis.score), expected[hypothesis.text], rel_tol=1e-5)
        assert hypothesis.score == hypothesis.acoustic_score
    assert [hypothesis.score for hypothesis in hypotheses] == sorted(
        (r.score for r in hypotheses), reverse=True
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hotwords", [(), (Hotword("ban", 3.0), Hotword("a nan", 2.0), Hotword("nbb", 4.0))])
def test_the_score_is_the_sum_of_acoustic_lm_bonuses_and_hotwords(
    tiny: NGram, seed: int, hotwords: tuple[Hotword, ...]
) -> None:
    search = SearchSettings(
        width=2048,
        token_floor=-600.0,
        beam_spread=600.0,
        n_best=2048,
        lm_weight=0.7,
        word_bonus=1.3,
        unknown_penalty=4.0,
        hotwords=hotwords,
    )
    frames = frames_of(seed, frames=5)
    oracle = tiny.kenlm()
    hypotheses = decode(frames, BeamDecoder(SMALL, tiny), search)
    acoustic = all_alignments(frames, SMALL)
    expected = {
        text: math.log(value) + expected_nats(text, tiny, search, SMALL) for text, value in acoustic.items()
    }
    assert {hypothesis.text for hypothesis in hypotheses} == set(expected)
    for hypothesis in hypotheses:
        assert math.isclose(hypothesis.score, expected[hypothesis.text], abs_tol=1e-4), hypothesis.text
        assert math.isclose(hypothesis.acoustic_score, math.log(acoustic[hypothesis.text]), abs_tol=1e-4)
        assert math.isclose(hypothesis.lm_score, oracle.score(hypothesis.text), abs_tol=1e-4)


def test_interim_lm_scores_equal_those_of_kenlm(tiny: NGram) -> None:
    oracle = tiny.kenlm()
    utterance = BeamDecoder(ALPHABET, tiny).start()
    for frame in frames_for("a band and a bad band plays on ", ALPHABET, np.random.default_rng(1)):
        utterance.push(frame[None])
        best = utterance.best()
        finished = [word.text for word in best.words][: best.text.count(" ") + 1]
        candidates = [
            " ".join(finished),
            " ".join(finished[:-1]),
        ]  # the last word counts once a space follows
        values = [oracle.score(text, bos=True, eos=False) for text in candidates]
        assert any(math.isclose(best.lm_score, value, abs_tol=1e-4) for value in values)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sharpness=st.sampled_from([0.5, 2.0, 6.0]),
    cuts=st.lists(st.integers(0, 120), max_size=12),
    width=st.sampled_from([1, 4, 32]),
    agreement=st.sampled_from([0.0, 0.3]),
)
def test_slicing_does_not_change_the_result(
    tiny: NGram, seed: int, sharpness: float, cuts: list[int], width: int, agreement: float
) -> None:
    generator = np.random.default_rng(seed)
    frames = np.concatenate(
        [
            frames_for("a band and a dam ", ALPHABET, generator, sharpness),
            random_frames(generator, 30, 29, sharpness),
        ]
    )[:120]
    decoder = BeamDecoder(ALPHABET, tiny)
    search = SearchSettings(
        width=width, n_best=width, partial_agreement=agreement, hotwords=(Hotword("a dam", 3.0),)
    )
    one_push, sliced, by_frame = (decoder.start(search) for _ in range(3))
    one_push.push(frames)
    edges = [0, *sorted(min(cut, len(frames)) for cut in cuts), len(frames)]
    for begin, end in pairwise(edges):
        sliced.push(frames[begin:end])
        sliced.best()
    for frame in frames:
        by_frame.push(frame[None])
        by_frame.best()
    assert one_push.best() == sliced.best() == by_frame.best()
    assert one_push.finish() == sliced.finish() == by_frame.finish()


def test_stable_words_never_change(tiny: NGram) -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        frames = np.concatenate(
            [
                frames_for("a band and a dam on and on ", ALPHABET, generator, sharpness)
                for sharpness in (6.0, 4.0, 3.0, 6.0)
            ]
        )
        utterance = BeamDecoder(ALPHABET, tiny).start(SearchSettings(width=16))
        committed: tuple[object, ...] = ()
        for frame in frames:
            utterance.push(frame[None])
            best = utterance.best()
            stable = best.words[: best.stable_words]
            assert stable[: len(committed)] == committed
            committed = stable
        final = utterance.finish()[0]
        assert final.words[: len(committed)] == committed
        assert final.stable_words == len(final.words)
        assert committed


@pytest.mark.parametrize("seed", range(6))
def test_interim_words_need_the_agreement_of_enough_probability(seed: int) -> None:
    frames = frames_of(seed, frames=7, classes=4)
    expected = all_alignments(frames, " ab")
    total = sum(expected.values())
    decoder = BeamDecoder(" ab")

    def interim_words(agreement: float) -> list[str]:
        utterance = decoder.start(replace(UNPRUNED, partial_agreement=agreement))
        utterance.push(frames)
        return [word.text for word in utterance.best().words]

    all_words = interim_words(0.0)
    for agreement in (0.05, 0.3, 0.6, 0.9):
        support = [
            sum(expected[text] for text in expected if text.startswith(" ".join(all_words[:count]))) / total
            for count in range(1, len(all_words) + 1)
        ]
        enough = sum(share >= agreement for share in support)
        assert interim_words(agreement) == all_words[: max(1, enough)], "the first word is always shown"


def test_word_frames_are_ordered_and_inside_the_utterance(tiny: NGram) -> None:
    for sharpness in (2.0, 4.0, 8.0):
        frames = frames_for("a bad man and a band plays on", ALPHABET, np.random.default_rng(5), sharpness)
        end = 0
        for word in decode(frames, BeamDecoder(ALPHABET, tiny), SearchSettings())[0].words:
            assert end <= word.first_frame < word.end_frame <= len(frames)
            assert 0.0 <= word.confidence <= 1.0
            end = word.end_frame


def test_word_frames_are_those_of_the_characters() -> None:
    labels = [28, 28, 1, 1, 28, 2, 28, 0, 28, 28, 3, 28]  # "ab c"
    frames = np.full((len(labels), 29), math.log(1e-6), np.float32)
    frames[np.arange(len(labels)), labels] = math.log(0.99)
    words = decode(frames, BeamDecoder(ALPHABET), SearchSettings())[0].words
    assert [(word.text, word.first_frame, word.end_frame) for word in words] == [("ab", 2, 6), ("c", 10, 11)]


def speech_without_pause(minutes: float, generator: np.random.Generator) -> list[np.ndarray]:
    """Frames of the same words with different noise, without a pause."""
    frames = 0
    pieces = []
    while frames < minutes * 3000:
        pieces.append(frames_for("a band and a dam and on ", ALPHABET, generator, sharpness=5.0))
        frames += len(pieces[-1])
    return pieces


def test_memory_does_not_grow_in_thirty_minutes_without_pause(tiny: NGram) -> None:
    pieces = speech_without_pause(2.0, np.random.default_rng(7))
    utterance = BeamDecoder(ALPHABET, tiny).start(SearchSettings(width=16))
    sizes = []
    for _ in range(15):
        for piece in pieces:
            utterance.push(piece)
        sizes.append(utterance.state_bytes)
    assert sizes[-1] == sizes[0]
    assert 15 * sum(map(len, pieces)) >= 30 * 3000
    assert len(utterance.finish()[0].words) > 30 * 60


@pytest.mark.parametrize("sharpness", [1.0, 3.0, 6.0])
def test_freeing_nodes_does_not_change_the_result(
    tiny: NGram, sharpness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(13)
    frames = np.concatenate(
        [frames_for("a band and a dam on ", ALPHABET, generator, sharpness) for _ in range(30)]
    )
    decoder = BeamDecoder(ALPHABET, tiny)
    search = SearchSettings(width=24, n_best=24, hotwords=(Hotword("a dam", 2.0),))
    hypotheses, sizes = [], []
    for capacity in (96, 50_000):  # the minimum for this width; enough that no node is ever freed
        monkeypatch.setattr(state, "MIN_NODES", capacity)
        utterance = decoder.start(search)
        utterance.push(frames)
        sizes.append(utterance.state_bytes)
        hypotheses.append((utterance.best(), utterance.finish()))
    assert hypotheses[0] == hypotheses[1]
    assert sizes[0] < sizes[1] / 8


def test_hypotheses_can_be_pickled(tiny: NGram) -> None:
    hypothesis = decode(
        frames_for("a band", ALPHABET, np.random.default_rng(1)),
        BeamDecoder(ALPHABET, tiny),
        SearchSettings(),
    )
    assert pickle.loads(pickle.dumps(hypothesis)) == hypothesis


def test_equally_probable_prefixes_are_committed_after_ten_seconds() -> None:
    """Two prefixes differ in an early word, and all later frames are equally probable for both."""
    head = np.full((3, 29), math.log(1e-6), np.float32)
    head[0, [1, 2]] = math.log(0.5), math.log(0.499)
    head[1, 28] = head[2, 0] = math.log(0.99)
    tail = frames_for("on and on ", ALPHABET, np.random.default_rng(1), sharpness=14.0)
    utterance = BeamDecoder(ALPHABET).start(SearchSettings(width=8))
    utterance.push(head)
    sizes = []
    for _ in range(60):
        utterance.push(tail)
        sizes.append(utterance.best().stable_words)
    assert sizes[10] == 0
    assert sizes[-1] > 100
    assert utterance.finish()[0].words[0].text == "a"


@pytest.mark.parametrize("kind", ["beam", "greedy"])
def test_degenerate_inputs(tiny: NGram, kind: str) -> None:
    decoder = open_decoder(kind, ALPHABET, tiny)  # type: ignore[arg-type]
    empty = decoder.start()
    empty.push(np.zeros((0, 29), np.float32))
    assert empty.best().text == ""
    assert [hypothesis.text for hypothesis in empty.finish()] == [""]

    silence = np.full((500, 29), -50.0, np.float32)
    silence[:, 28] = 0.0
    silent = decoder.start()
    silent.push(silence)
    assert silent.finish()[0].text == ""

    one_label = np.full((500, 29), -50.0, np.float32)
    one_label[:, 1] = 0.0
    one = decoder.start()
    one.push(one_label)
    assert one.finish()[0].text == "a"

    uniform = np.full((50, 29), -math.log(29), np.float32)
    flat = decoder.start(SearchSettings(width=8))
    flat.push(uniform)
    assert len(flat.finish()) == 1

    spaces = np.full((50, 29), -50.0, np.float32)
    spaces[::2, 0] = 0.0
    spaces[1::2, 28] = 0.0
    spaces_only = decoder.start()
    spaces_only.push(spaces)
    assert spaces_only.finish()[0].text == ""


@pytest.mark.parametrize("kind", ["beam", "greedy", "pyctcdecode"])
def test_invalid_log_probs_are_refused(tiny: NGram, kind: str) -> None:
    decoder = open_decoder(kind, ALPHABET, tiny)  # type: ignore[arg-type]
    good = frames_of(1, 10, classes=29)
    for spoiled in (math.nan, math.inf, 3.5):
        bad = good.copy()
        bad[4, 7] = spoiled
        with pytest.raises(LanguageError, match=r"Frame 4.*log-probabilities"):
            decoder.start().push(bad)
    with pytest.raises(LanguageError, match="shape"):
        decoder.start().push(good[:, :20])
    with pytest.raises(LanguageError, match="shape"):
        decoder.start().push(good[0])


def test_a_frame_without_any_probability_is_refused() -> None:
    bad = frames_of(1, 10, classes=29)
    bad[6] = -np.inf
    with pytest.raises(LanguageError, match="Frame 6"):
        BeamDecoder(ALPHABET).start().push(bad)


def test_frames_with_minus_infinity_are_decoded() -> None:
    frames = np.full((6, 29), -np.inf, np.float32)
    frames[np.arange(6), [28, 3, 1, 28, 20, 28]] = 0.0
    assert decode(frames, BeamDecoder(ALPHABET), SearchSettings())[0].text == "cat"


@pytest.mark.parametrize("kind", ["beam", "greedy", "pyctcdecode"])
def test_a_finished_utterance_refuses_frames(kind: str) -> None:
    utterance = open_decoder(kind, ALPHABET).start()  # type: ignore[arg-type]
    utterance.push(frames_of(1, 5, classes=29))
    utterance.finish()
    with pytest.raises(LanguageError, match="finished"):
        utterance.push(frames_of(1, 5, classes=29))
    with pytest.raises(LanguageError, match="finished"):
        utterance.finish()


def test_an_alphabet_without_space_gives_one_word() -> None:
    frames = frames_of(2, 5, classes=4)
    expected: dict[str, float] = defaultdict(float)
    for text, value in all_alignments(frames, "abn").items():
        expected[text] += value
    hypotheses = decode(frames, BeamDecoder("abn"), UNPRUNED)
    assert {hypothesis.text for hypothesis in hypotheses} == set(expected)
    assert all(len(hypothesis.words) <= 1 for hypothesis in hypotheses)


@pytest.mark.parametrize("width", [1, 2, 2048])
def test_a_wider_beam_never_scores_worse(tiny: NGram, width: int) -> None:
    frames = frames_for("a bad band", ALPHABET, np.random.default_rng(11), sharpness=2.0)
    decoder = BeamDecoder(ALPHABET, tiny)
    narrow = decode(frames, decoder, SearchSettings(width=1, beam_spread=50.0))[0]
    wide = decode(frames, decoder, SearchSettings(width=width, beam_spread=50.0))[0]
    assert wide.score >= narrow.score - 1e-9


def test_the_n_best_list_is_unique_and_sorted(tiny: NGram) -> None:
    frames = frames_for("a bad band", ALPHABET, np.random.default_rng(12), sharpness=3.0)
    hypotheses = decode(frames, BeamDecoder(ALPHABET, tiny), SearchSettings(n_best=10))
    assert len(hypotheses) == len({hypothesis.text for hypothesis in hypotheses}) == 10
    assert all(one.score >= two.score for one, two in pairwise(hypotheses))


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 4096},
        {"n_best": 0},
        {"n_best": 65},
        {"token_floor": 1.0},
        {"beam_spread": 0.0},
        {"lm_weight": math.nan},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LanguageError):
        SearchSettings(**wrong)  # type: ignore[arg-type]


def test_the_kernel_releases_the_gil() -> None:
    from lm.search.kernel import advance

    assert advance.targetoptions["nogil"] is True  # type: ignore[attr-defined]


def test_kernels_are_compiled_once_for_all_settings(tiny: NGram) -> None:
    """A second signature would compile for seconds during a request."""
    from lm.search import final_scores, kernel, partial_agreement, prefix_tree

    search = SearchSettings(width=100, n_best=3, partial_agreement=0.3, hotwords=(Hotword("anna"),))
    for decoder in (BeamDecoder(ALPHABET, tiny), BeamDecoder(SMALL)):
        classes = len(decoder.alphabet) + 1
        utterance: BeamUtterance = decoder.start(search if classes > 5 else SearchSettings())
        frames = random_frames(np.random.default_rng(1), 400, classes, 2.0)
        frames.flags.writeable = False
        utterance.push(frames)
        utterance.push(np.asfortranarray(frames))
        utterance.best()
        utterance.finish()
    kernels = [
        kernel.advance,
        final_scores.final_scores,
        prefix_tree.read_words,
        prefix_tree.sweep,
        partial_agreement.agreed_words,
    ]
    assert [len(kernel.signatures) for kernel in kernels] == [1] * len(kernels)  # type: ignore[attr-defined]
