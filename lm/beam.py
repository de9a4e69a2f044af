"""The streaming beam search as the house sees it: a decoder shared by all, an utterance for each stream.

The compiled loop is in search_kernel.py; here its arrays are made, its tree is kept small, its paths become words.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lm.compiled import Array
from lm.errors import LanguageError
from lm.frames import checked
from lm.hotwords import automaton
from lm.hypothesis import Hypothesis, Word
from lm.lexicon import Lexicon, build
from lm.ngram import NGram
from lm.search_agreement import agreed_words
from lm.search_endings import ACOUSTIC, LANGUAGE, LAST_WORD, SCORE, endings
from lm.search_kernel import BAD_FRAME, advance
from lm.search_settings import SearchSettings
from lm.search_state import COUNT, FRAME, LOG_SCALE, ROOT, SearchState
from lm.search_steps import LARGEST_STEP, LN10
from lm.search_tree import EVIDENCE, best_beam, boundary_at, common_ancestor, read_words, sweep, words_between

Prepared = tuple[Array, Array, tuple[Array, ...]]
PREPARED_SETTINGS = 64
"""Streams with the same settings share what is made of them; at the limit all is forgotten and made anew."""


class BeamDecoder:
    """What all utterances of a process share: the alphabet, the language model, the trie of its words."""

    def __init__(self, alphabet: str, ngram: NGram | None = None) -> None:
        self.alphabet = alphabet
        self.ngram = ngram
        self.space = alphabet.find(" ")
        self.characters = np.array([min(ord(character), 0x10FFFF) for character in alphabet], np.uint32)
        self.characters.flags.writeable = False
        if ngram is None:
            lexicon = Lexicon(
                np.zeros(1, np.uint64), np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32)
            )
            model: tuple[Array, Array, Array] = (
                np.zeros(1, np.uint64),
                np.zeros(1, np.float32),
                np.zeros((1, 9), np.int64),
            )
        else:
            lexicon = build(ngram.vocabulary(), alphabet, ngram.alone())
            model = (ngram.file, ngram.floats, ngram.layout)
        self.language: tuple[Array, ...] = (
            lexicon.labels,
            lexicon.first_child,
            lexicon.word,
            lexicon.promise,
            *model,
        )
        self._largest_promise = -LN10 * float(lexicon.promise.min())
        for array in self.language:
            array.flags.writeable = False
        self._prepared: dict[SearchSettings, Prepared] = {}

    def start(self, settings: SearchSettings = SearchSettings()) -> "BeamUtterance":
        if settings not in self._prepared:
            if len(self._prepared) >= PREPARED_SETTINGS:
                self._prepared.clear()
            self._prepared[settings] = self._prepare(settings)
        return BeamUtterance(self, settings, self._prepared[settings])

    def _prepare(self, settings: SearchSettings) -> Prepared:
        """The settings as the kernels read them, and the arrays they share."""
        phrases = automaton(settings.hotwords, self.alphabet)
        has_lm = self.ngram is not None
        # Without a language model there is nothing for a word bonus to make up for, and no word is unknown.
        bonus = settings.word_bonus if has_lm else 0.0
        penalty = settings.unknown_penalty if has_lm else 0.0
        # What a letter is worth to a language model of which all letters are alike.
        spelling = settings.lm_weight * math.log(max(1, len(self.alphabet))) if has_lm else 0.0
        # A letter that no known word goes on with gives back what was charged for the word that will not come.
        given_back = max(
            0.0,
            self._largest_promise * settings.lm_weight - (0.0 if settings.hotwords else penalty + spelling),
        )
        shape = np.array([settings.width, len(self.alphabet), self.space, has_lm], np.int64)
        weights = np.array(
            [
                settings.lm_weight,
                bonus,
                penalty,
                spelling,
                settings.token_floor,
                math.exp(-settings.beam_spread),
                # No letter and no space multiplies a prefix by more: what falls short even so is not tried.
                math.exp(min(LARGEST_STEP, phrases.largest_loan + given_back)),
                math.exp(min(LARGEST_STEP, max(0.0, bonus) + phrases.largest_loan + phrases.largest_grant)),
                math.exp(-settings.blank_penalty),
            ]
        )
        shared = (*self.language, phrases.following, phrases.lent, phrases.granted, phrases.known)
        return shape, weights, shared


class BeamUtterance:
    def __init__(self, decoder: BeamDecoder, settings: SearchSettings, prepared: Prepared) -> None:
        self._decoder = decoder
        self._settings = settings
        self._labels = len(decoder.alphabet)
        self._shape, self._weights, self._shared = prepared
        contexts = decoder.ngram.order - 1 if decoder.ngram else 1
        self._state = SearchState.start(settings.width, self._labels, contexts)
        if decoder.ngram:
            _, length = decoder.ngram.begin(self._state.context_words[0], self._state.context_backoffs[0])
            self._state.nodes[0]["context_length"] = length
        self._settled: list[Word] = []
        self._finished = False
        self._tie()

    def _tie(self) -> None:
        state = self._state
        self._own = (
            self._shape,
            self._weights,
            state.nodes,
            state.children,
            state.context_words,
            state.context_backoffs,
            state.beams,
            state.free,
            state.counters,
            state.scale,
            *self._shared,
        )

    def push(self, log_probs: NDArray[np.float32]) -> None:
        if self._finished:
            raise LanguageError("This utterance is finished: start another one for more frames.")
        frames = checked(log_probs, self._labels + 1)
        first = 0
        while first < len(frames):
            first = advance(frames, first, *self._own)
            if first < 0:
                self._finished = True
                raise LanguageError(
                    f"Frame {BAD_FRAME - first} of this push gives no label any probability (all -inf): "
                    "expected log-probabilities that add up to 1. The utterance cannot go on."
                )
            if first < len(frames):
                self._make_room()

    def _make_room(self) -> None:
        """Turn what is settled into words, drop dead prefixes, take more memory only if that is not enough."""
        state = self._state
        boundary = self._settled_boundary()
        if boundary != state.counters[ROOT]:
            self._settled += self._words(boundary, math.nan)
        sweep(state.nodes, state.children, state.beams, state.free, state.counters, boundary)
        if state.available < len(state.nodes) // 2:
            state.grow()
            self._tie()

    def _settled_boundary(self) -> int:
        state = self._state
        return boundary_at(
            state.nodes, common_ancestor(state.nodes, state.beams, state.counters), self._decoder.space
        )

    def _words(self, place: int, last_language: float) -> list[Word]:
        """The words between the root and a place in the tree."""
        state = self._state
        root = int(state.counters[ROOT])
        length = int(state.nodes[place]["depth"] - state.nodes[root]["depth"])
        spelling = np.empty(length, np.uint32)
        spans = np.empty((length // 2 + 1, 2), np.int64)
        evidence = np.empty((length // 2 + 1, EVIDENCE), np.float64)
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
            evidence,
        )
        texts = spelling.tobytes().decode("utf-32-le").split(" ")
        confidences = evidence[:count, 0].tolist()
        # A last space leaves an empty text behind, which has no span.
        return [
            Word(text, first, end, confidence)
            for text, (first, end), confidence in zip(
                texts, spans[:count].tolist(), confidences, strict=False
            )
        ]

    def best(self) -> Hypothesis:
        if self._finished:
            raise LanguageError("This utterance is finished: its readings are what finish() returned.")
        state = self._state
        beam = best_beam(state.beams, state.counters)
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
            agreed = agreed_words(
                state.nodes,
                int(state.counters[ROOT]),
                state.beams,
                int(state.counters[COUNT]),
                self._decoder.space,
                self._settings.partial_agreement,
            )
            # Somebody who begins to speak wants to see that he is heard.
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
        rows = endings(*self._own)
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
    def frames_heard(self) -> int:
        return int(self._state.counters[FRAME])

    @property
    def state_bytes(self) -> int:
        """Memory this utterance holds for its search."""
        return self._state.bytes


def warm() -> None:
    """Compile the search, or load what was compiled before: when a process starts, never in a request."""
    alphabet = " a"
    utterance = BeamDecoder(alphabet).start(SearchSettings(width=2, partial_agreement=0.5))
    frames = np.log(np.array([[0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.3, 0.5, 0.2]], np.float32))
    utterance.push(frames)
    utterance.best()
    utterance._make_room()
    utterance.finish()
