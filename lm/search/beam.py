"""The streaming beam search: a decoder that all streams of a process share, and an utterance for each stream.

The compiled loop is in search_kernel.py; this file makes its arrays, keeps its tree small and turns paths into words.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError
from lm.hypothesis import Hypothesis, Word
from lm.ngram.query import COLUMNS, Trie
from lm.ngram.trie import NGram
from lm.search.extension_scores import LN10, MAX_STEP_NATS, Search, Weights
from lm.search.final_scores import ACOUSTIC, LANGUAGE, LAST_WORD, SCORE, final_scores
from lm.search.frames import validate_log_probs
from lm.search.hotwords import build_automaton
from lm.search.kernel import BAD_FRAME, advance
from lm.search.lexicon import Lexicon, build
from lm.search.partial_agreement import agreed_words
from lm.search.prefix_tree import (
    CONFIDENCE_INPUTS,
    best_beam,
    boundary_at,
    common_ancestor,
    read_words,
    sweep,
    words_between,
)
from lm.search.settings import SearchSettings
from lm.search.state import LOG_SCALE, ROOT, SearchState

MAX_CACHED_SETTINGS = 64
"""Streams with the same settings share a Search; at the limit the cache is emptied."""


class BeamDecoder:
    """What all utterances of a process share: the alphabet, the language model, its lexicon."""

    def __init__(self, alphabet: str, ngram: NGram | None = None) -> None:
        self.alphabet = alphabet
        self.ngram = ngram
        self.space = alphabet.find(" ")
        self.characters = np.array([min(ord(character), 0x10FFFF) for character in alphabet], np.uint32)
        self.characters.flags.writeable = False
        if ngram is None:
            # Arrays of the same types: the kernels are compiled once for both cases.
            floats = np.zeros(1, np.float32)
            self.lexicon = Lexicon(
                np.zeros(1, np.uint64), np.zeros(1, np.int32), np.zeros(1, np.int32), floats
            )
            self.trie = Trie(np.zeros(1, np.uint64), floats, np.zeros((1, COLUMNS), np.int64))
        else:
            self.lexicon = build(ngram.vocabulary(), alphabet, ngram.unigrams())
            self.trie = ngram.trie
        for array in (*self.lexicon, *self.trie):
            array.flags.writeable = False
        self._searches: dict[SearchSettings, Search] = {}

    def start(self, settings: SearchSettings = SearchSettings()) -> "BeamUtterance":
        if settings not in self._searches:
            if len(self._searches) >= MAX_CACHED_SETTINGS:
                self._searches.clear()
            self._searches[settings] = self._search(settings)
        return BeamUtterance(self, settings, self._searches[settings])

    def _search(self, settings: SearchSettings) -> Search:
        hotwords = build_automaton(settings.hotwords, self.alphabet)
        has_lm = self.ngram is not None
        # Without a language model no word bonus has to make up for one, and no word is unknown.
        bonus = settings.word_bonus if has_lm else 0.0
        penalty = settings.unknown_penalty if has_lm else 0.0
        # The cost of a character under a uniform distribution over all of them.
        character_penalty = settings.lm_weight * math.log(max(1, len(self.alphabet))) if has_lm else 0.0
        # A character that no known word goes on with takes the look-ahead of the word under way back.
        refund = max(
            0.0,
            -LN10 * float(self.lexicon.look_ahead.min()) * settings.lm_weight
            - (0.0 if settings.hotwords else penalty + character_penalty),
        )
        weights = Weights(
            width=settings.width,
            labels=len(self.alphabet),
            space=self.space,
            has_lm=has_lm,
            lm_weight=float(settings.lm_weight),
            word_bonus=float(bonus),
            unknown_penalty=float(penalty),
            character_penalty=character_penalty,
            token_floor=float(settings.token_floor),
            spread_factor=math.exp(-settings.beam_spread),
            max_character_factor=math.exp(min(MAX_STEP_NATS, hotwords.max_partial_bonus + refund)),
            max_space_factor=math.exp(
                min(MAX_STEP_NATS, max(0.0, bonus) + hotwords.max_partial_bonus + hotwords.max_full_bonus)
            ),
            blank_factor=math.exp(-settings.blank_penalty),
        )
        return Search(weights, self.lexicon, self.trie, hotwords)


class BeamUtterance:
    def __init__(self, decoder: BeamDecoder, settings: SearchSettings, search: Search) -> None:
        self._decoder = decoder
        self._settings = settings
        self._labels = len(decoder.alphabet)
        self._search = search
        contexts = decoder.ngram.order - 1 if decoder.ngram else 1
        self._state = SearchState.start(settings.width, self._labels, contexts)
        if decoder.ngram:
            _, length = decoder.ngram.begin(self._state.context_words[0], self._state.context_backoffs[0])
            self._state.nodes[0]["context_length"] = length
        self._settled: list[Word] = []
        self._finished = False

    def push(self, log_probs: NDArray[np.float32]) -> None:
        if self._finished:
            raise LanguageError("This utterance is finished: start another one for more frames.")
        frames = validate_log_probs(log_probs, self._labels + 1)
        first = 0
        while first < len(frames):
            first = advance(frames, first, self._search, self._state)
            if first < 0:
                self._finished = True
                raise LanguageError(
                    f"Frame {BAD_FRAME - first} of this push gives no label any probability (all -inf): "
                    "expected log-probabilities that add up to 1. The utterance cannot go on."
                )
            if first < len(frames):
                self._free_nodes()

    def _free_nodes(self) -> None:
        """Turn what is settled into words, free dead prefixes, and grow the tree only if that is not enough."""
        state = self._state
        boundary = self._settled_boundary()
        if boundary != state.counters[ROOT]:
            self._settled += self._words(boundary, math.nan)
        sweep(state, boundary)
        if state.available < len(state.nodes) // 2:
            self._state = state.grown()

    def _settled_boundary(self) -> int:
        return boundary_at(self._state.nodes, common_ancestor(self._state), self._decoder.space)

    def _words(self, place: int, last_language: float) -> list[Word]:
        """The words between the root and a place in the tree."""
        state = self._state
        root = int(state.counters[ROOT])
        length = int(state.nodes[place]["depth"] - state.nodes[root]["depth"])
        spelling = np.empty(length, np.uint32)
        spans = np.empty((length // 2 + 1, 2), np.int64)
        confidences = np.empty((length // 2 + 1, CONFIDENCE_INPUTS), np.float64)
        count = read_words(
            state.nodes,
            root,
            place,
            self._decoder.space,
            self._settled[-1].end_frame if self._settled else 0,
            last_language,
            spelling,
            self._decoder.characters,
            spans,
            confidences,
        )
        texts = spelling.tobytes().decode("utf-32-le").split(" ")
        # A last space leaves an empty text behind, which has no span.
        return [
            Word(text, first, end, confidence)
            for text, (first, end), confidence in zip(
                texts, spans[:count].tolist(), confidences[:count, 0].tolist(), strict=False
            )
        ]

    def best(self) -> Hypothesis:
        if self._finished:
            raise LanguageError("This utterance is finished: finish() has returned its hypotheses.")
        state = self._state
        beam = best_beam(state)
        place = int(state.beams[beam]["node"])
        node = state.nodes[place]
        score = math.log(state.beams[beam]["blank"] + state.beams[beam]["label"]) + float(
            state.scale[LOG_SCALE]
        )
        stable = words_between(
            state.nodes, int(state.counters[ROOT]), self._settled_boundary(), self._decoder.space
        )
        words = self._words(place, math.nan)
        if self._settings.partial_agreement > 0:
            agreed = agreed_words(state, self._decoder.space, self._settings.partial_agreement)
            # The first word is shown at once: a speaker wants to see that recognition has started.
            first = 0 if self._settled else 1
            words = words[: max(agreed, stable, first)]
        return Hypothesis(
            words=(*self._settled, *words),
            stable_words=len(self._settled) + stable,
            score=score,
            acoustic_score=score - float(node["bias"]),
            language_score=float(node["language"]),
        )

    def finish(self) -> tuple[Hypothesis, ...]:
        if self._finished:
            raise LanguageError("This utterance is finished already.")
        rows = final_scores(self._search, self._state)
        best_first = np.argsort(-rows[:, SCORE], kind="stable")[: self._settings.n_best]
        result = []
        for beam in best_first.tolist():
            row = rows[beam]
            if row[SCORE] == -math.inf:
                break
            words = (
                *self._settled,
                *self._words(int(self._state.beams[beam]["node"]), float(row[LAST_WORD])),
            )
            scores = (float(row[SCORE]), float(row[ACOUSTIC]), float(row[LANGUAGE]))
            result.append(Hypothesis(words, len(words), *scores))
        self._finished = True
        return tuple(result)

    @property
    def state_bytes(self) -> int:
        """The memory of this utterance's search."""
        return self._state.bytes


def warm() -> None:
    """Compile the search, or load what was compiled before: when a process starts, never in a request."""
    alphabet = " a"
    utterance = BeamDecoder(alphabet).start(SearchSettings(width=2, partial_agreement=0.5))
    frames = np.log(np.array([[0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.3, 0.5, 0.2]], np.float32))
    utterance.push(frames)
    utterance.best()
    utterance._free_nodes()
    utterance.finish()
