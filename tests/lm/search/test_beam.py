"""The streaming search against every alignment counted by hand, and the promises it makes to streams."""

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
from tests.lm.matrices import all_readings, random_frames, spoken

UNPRUNED = SearchSettings(width=2048, token_floor=-600.0, beam_spread=600.0, n_best=2048)
SMALL = " abn"


def frames_of(seed: int, frames: int, classes: int = 5, sharpness: float = 1.5) -> np.ndarray:
    return random_frames(np.random.default_rng(seed), frames, classes, sharpness)


def lost(words: list[str], place: int, ngram: NGram, search: SearchSettings) -> int:
    """The letters of a word from the first one on that neither a known word nor a hotword under way goes on with."""
    word, likely = words[place], {known.decode() for known in ngram.vocabulary()[1:].tolist()}
    for phrase in (hotword.phrase.split() for hotword in search.hotwords):
        likely |= {
            phrase[said] for said in range(len(phrase)) if words[:place][place - said :] == phrase[:said]
        }
    begun = {other[:letters] for other in likely for letters in range(len(other) + 1)}
    return sum(word[: letters + 1] not in begun for letters in range(len(word)))


def worth(text: str, ngram: NGram, search: SearchSettings, alphabet: str) -> float:
    """What language model, bonuses, penalties and hotwords add to a finished text, by their definitions."""
    words, oracle = text.split(), ngram.kenlm()
    known = {word for hotword in search.hotwords for word in hotword.phrase.split()}
    unknown = [place for place, word in enumerate(words) if word not in oracle and word not in known]
    nats = search.lm_weight * math.log(10) * oracle.score(text) + search.word_bonus * len(words)
    nats -= search.unknown_penalty * len(unknown)
    letters = sum(lost(words, place, ngram, search) for place in unknown)
    nats -= search.lm_weight * math.log(len(alphabet)) * letters
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
def test_without_pruning_every_reading_has_exactly_the_probability_of_its_alignments(seed: int) -> None:
    frames = frames_of(seed, frames=5)
    expected = all_readings(frames, SMALL)
    readings = decode(frames, BeamDecoder(SMALL), UNPRUNED)
    assert {reading.text for reading in readings} == set(expected)
    for reading in readings:
        assert math.isclose(math.exp(reading.score), expected[reading.text], rel_tol=1e-5)
        assert reading.score == reading.acoustic_score
    assert [reading.score for reading in readings] == sorted((r.score for r in readings), reverse=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hotwords", [(), (Hotword("ban", 3.0), Hotword("a nan", 2.0), Hotword("nbb", 4.0))])
def test_with_everything_on_the_score_is_the_sum_of_its_parts(
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
    readings = decode(frames, BeamDecoder(SMALL, tiny), search)
    acoustic = all_readings(frames, SMALL)
    expected = {text: math.log(value) + worth(text, tiny, search, SMALL) for text, value in acoustic.items()}
    assert {reading.text for reading in readings} == set(expected)
    for reading in readings:
        assert math.isclose(reading.score, expected[reading.text], abs_tol=1e-4), reading.text
        assert math.isclose(reading.acoustic_score, math.log(acoustic[reading.text]), abs_tol=1e-4)
        assert math.isclose(reading.lm_score, oracle.score(reading.text), abs_tol=1e-4)


def test_language_scores_are_kenlms_while_the_utterance_goes_on(tiny: NGram) -> None:
    oracle = tiny.kenlm()
    utterance = BeamDecoder(ALPHABET, tiny).start()
    for frame in spoken("a band and a bad band plays on ", ALPHABET, np.random.default_rng(1)):
        utterance.push(frame[None])
        best = utterance.best()
        finished = [word.text for word in best.words][: best.text.count(" ") + 1]
        candidates = [
            " ".join(finished),
            " ".join(finished[:-1]),
        ]  # the last word counts once a space is heard
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
def test_the_slicing_changes_nothing_at_all(
    tiny: NGram, seed: int, sharpness: float, cuts: list[int], width: int, agreement: float
) -> None:
    generator = np.random.default_rng(seed)
    frames = np.concatenate(
        [
            spoken("a band and a dam ", ALPHABET, generator, sharpness),
            random_frames(generator, 30, 29, sharpness),
        ]
    )[:120]
    decoder = BeamDecoder(ALPHABET, tiny)
    search = SearchSettings(
        width=width, n_best=width, partial_agreement=agreement, hotwords=(Hotword("a dam", 3.0),)
    )
    whole, sliced, single = (decoder.start(search) for _ in range(3))
    whole.push(frames)
    edges = [0, *sorted(min(cut, len(frames)) for cut in cuts), len(frames)]
    for begin, end in pairwise(edges):
        sliced.push(frames[begin:end])
        sliced.best()
    for frame in frames:
        single.push(frame[None])
        single.best()
    assert whole.best() == sliced.best() == single.best()
    assert whole.finish() == sliced.finish() == single.finish()


def test_what_is_stable_never_changes_and_only_grows(tiny: NGram) -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        frames = np.concatenate(
            [
                spoken("a band and a dam on and on ", ALPHABET, generator, sharpness)
                for sharpness in (6.0, 4.0, 3.0, 6.0)
            ]
        )
        utterance = BeamDecoder(ALPHABET, tiny).start(SearchSettings(width=16))
        promised: tuple[object, ...] = ()
        for frame in frames:
            utterance.push(frame[None])
            best = utterance.best()
            stable = best.words[: best.stable_words]
            assert stable[: len(promised)] == promised
            promised = stable
        final = utterance.finish()[0]
        assert final.words[: len(promised)] == promised
        assert final.stable_words == len(final.words)
        assert promised


@pytest.mark.parametrize("seed", range(6))
def test_words_are_told_once_enough_probability_stands_behind_them(seed: int) -> None:
    frames = frames_of(seed, frames=7, classes=4)
    expected = all_readings(frames, " ab")
    total = sum(expected.values())
    decoder = BeamDecoder(" ab")

    def told(agreement: float) -> list[str]:
        utterance = decoder.start(replace(UNPRUNED, partial_agreement=agreement))
        utterance.push(frames)
        return [word.text for word in utterance.best().words]

    everything = told(0.0)
    for agreement in (0.05, 0.3, 0.6, 0.9):
        behind = [
            sum(expected[text] for text in expected if text.startswith(" ".join(everything[:count]))) / total
            for count in range(1, len(everything) + 1)
        ]
        enough = sum(share >= agreement for share in behind)
        assert told(agreement) == everything[: max(1, enough)], "the first word is told at once"


def test_words_carry_ordered_frames_inside_the_utterance(tiny: NGram) -> None:
    for sharpness in (2.0, 4.0, 8.0):
        frames = spoken("a bad man and a band plays on", ALPHABET, np.random.default_rng(5), sharpness)
        end = 0
        for word in decode(frames, BeamDecoder(ALPHABET, tiny), SearchSettings())[0].words:
            assert end <= word.first_frame < word.end_frame <= len(frames)
            assert 0.0 <= word.confidence <= 1.0
            end = word.end_frame


def test_word_frames_are_where_the_letters_were() -> None:
    labels = [28, 28, 1, 1, 28, 2, 28, 0, 28, 28, 3, 28]  # "ab c"
    frames = np.full((len(labels), 29), math.log(1e-6), np.float32)
    frames[np.arange(len(labels)), labels] = math.log(0.99)
    words = decode(frames, BeamDecoder(ALPHABET), SearchSettings())[0].words
    assert [(word.text, word.first_frame, word.end_frame) for word in words] == [("ab", 2, 6), ("c", 10, 11)]


def unbroken(minutes: float, generator: np.random.Generator) -> list[np.ndarray]:
    """Speech without a pause, in pieces: the same words again and again under ever different noise."""
    frames = 0
    pieces = []
    while frames < minutes * 3000:
        pieces.append(spoken("a band and a dam and on ", ALPHABET, generator, sharpness=5.0))
        frames += len(pieces[-1])
    return pieces


def test_thirty_unbroken_minutes_need_the_memory_of_two(tiny: NGram) -> None:
    pieces = unbroken(2.0, np.random.default_rng(7))
    utterance = BeamDecoder(ALPHABET, tiny).start(SearchSettings(width=16))
    held = []
    for _ in range(15):
        for piece in pieces:
            utterance.push(piece)
        held.append(utterance.state_bytes)
    assert held[-1] == held[0]
    assert 15 * sum(map(len, pieces)) >= 30 * 3000
    assert len(utterance.finish()[0].words) > 30 * 60


@pytest.mark.parametrize("sharpness", [1.0, 3.0, 6.0])
def test_throwing_dead_prefixes_away_changes_nothing(
    tiny: NGram, sharpness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(13)
    frames = np.concatenate(
        [spoken("a band and a dam on ", ALPHABET, generator, sharpness) for _ in range(30)]
    )
    decoder = BeamDecoder(ALPHABET, tiny)
    search = SearchSettings(width=24, n_best=24, hotwords=(Hotword("a dam", 2.0),))
    readings, sizes = [], []
    for places in (96, 50_000):  # as small as the width allows; so large that nothing is ever thrown away
        monkeypatch.setattr(state, "MIN_NODES", places)
        utterance = decoder.start(search)
        utterance.push(frames)
        sizes.append(utterance.state_bytes)
        readings.append((utterance.best(), utterance.finish()))
    assert readings[0] == readings[1]
    assert sizes[0] < sizes[1] / 8


def test_readings_travel_between_processes(tiny: NGram) -> None:
    reading = decode(
        spoken("a band", ALPHABET, np.random.default_rng(1)), BeamDecoder(ALPHABET, tiny), SearchSettings()
    )
    assert pickle.loads(pickle.dumps(reading)) == reading


def test_two_readings_that_stay_even_are_settled_in_the_end() -> None:
    """Two spellings of one early word, equally likely for ever after: nothing later can tell them apart."""
    head = np.full((3, 29), math.log(1e-6), np.float32)
    head[0, [1, 2]] = math.log(0.5), math.log(0.499)
    head[1, 28] = head[2, 0] = math.log(0.99)
    tail = spoken("on and on ", ALPHABET, np.random.default_rng(1), sharpness=14.0)
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
    nothing = decoder.start()
    nothing.push(np.zeros((0, 29), np.float32))
    assert nothing.best().text == ""
    assert [reading.text for reading in nothing.finish()] == [""]

    silence = np.full((500, 29), -50.0, np.float32)
    silence[:, 28] = 0.0
    quiet = decoder.start()
    quiet.push(silence)
    assert quiet.finish()[0].text == ""

    hum = np.full((500, 29), -50.0, np.float32)
    hum[:, 1] = 0.0
    one = decoder.start()
    one.push(hum)
    assert one.finish()[0].text == "a"

    even = np.full((50, 29), -math.log(29), np.float32)
    flat = decoder.start(SearchSettings(width=8))
    flat.push(even)
    assert len(flat.finish()) == 1

    spaces = np.full((50, 29), -50.0, np.float32)
    spaces[::2, 0] = 0.0
    spaces[1::2, 28] = 0.0
    gaps = decoder.start()
    gaps.push(spaces)
    assert gaps.finish()[0].text == ""


@pytest.mark.parametrize("kind", ["beam", "greedy", "pyctcdecode"])
def test_what_is_no_distribution_is_refused(tiny: NGram, kind: str) -> None:
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


def test_certainty_with_infinities_is_understood() -> None:
    frames = np.full((6, 29), -np.inf, np.float32)
    frames[np.arange(6), [28, 3, 1, 28, 20, 28]] = 0.0
    assert decode(frames, BeamDecoder(ALPHABET), SearchSettings())[0].text == "cat"


@pytest.mark.parametrize("kind", ["beam", "greedy", "pyctcdecode"])
def test_nothing_goes_on_after_the_end(kind: str) -> None:
    utterance = open_decoder(kind, ALPHABET).start()  # type: ignore[arg-type]
    utterance.push(frames_of(1, 5, classes=29))
    utterance.finish()
    with pytest.raises(LanguageError, match="finished"):
        utterance.push(frames_of(1, 5, classes=29))
    with pytest.raises(LanguageError, match="finished"):
        utterance.finish()


def test_an_alphabet_without_a_space_is_one_word() -> None:
    frames = frames_of(2, 5, classes=4)
    expected: dict[str, float] = defaultdict(float)
    for text, value in all_readings(frames, "abn").items():
        expected[text] += value
    readings = decode(frames, BeamDecoder("abn"), UNPRUNED)
    assert {reading.text for reading in readings} == set(expected)
    assert all(len(reading.words) <= 1 for reading in readings)


@pytest.mark.parametrize("width", [1, 2, 2048])
def test_every_width_works_and_a_wider_search_never_scores_worse(tiny: NGram, width: int) -> None:
    frames = spoken("a bad band", ALPHABET, np.random.default_rng(11), sharpness=2.0)
    decoder = BeamDecoder(ALPHABET, tiny)
    narrow = decode(frames, decoder, SearchSettings(width=1, beam_spread=50.0))[0]
    here = decode(frames, decoder, SearchSettings(width=width, beam_spread=50.0))[0]
    assert here.score >= narrow.score - 1e-9


def test_n_best_are_different_and_in_order(tiny: NGram) -> None:
    frames = spoken("a bad band", ALPHABET, np.random.default_rng(12), sharpness=3.0)
    readings = decode(frames, BeamDecoder(ALPHABET, tiny), SearchSettings(n_best=10))
    assert len(readings) == len({reading.text for reading in readings}) == 10
    assert all(one.score >= two.score for one, two in pairwise(readings))


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


def test_the_search_runs_without_the_interpreters_lock() -> None:
    from lm.search.kernel import advance

    assert advance.targetoptions["nogil"] is True  # type: ignore[attr-defined]


def test_one_compilation_serves_every_setting(tiny: NGram) -> None:
    """A second signature would mean seconds of compiling in somebody's request."""
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
