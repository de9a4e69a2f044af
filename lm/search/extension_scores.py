"""What one more character and the end of a word add to a prefix: language model, bonuses, penalties, hotwords."""

import math
from typing import NamedTuple

from lm.ngram.query import Trie, query
from lm.numba_cache import Array, Record, compiled, real, whole
from lm.search.hotwords import NO_MATCH, Automaton
from lm.search.lexicon import Lexicon, step
from lm.search.state import SearchState

LN10 = math.log(10.0)
MAX_STEP_NATS = 600.0
"""No single label may add more nats than a double can hold."""


class Weights(NamedTuple):
    """The settings of a search as its kernels take them; a `_factor` multiplies a probability."""

    width: int
    labels: int
    space: int
    has_lm: bool
    lm_weight: float
    word_bonus: float
    unknown_penalty: float
    character_penalty: float  # for each character that neither a known word nor a hotword goes on with
    token_floor: float
    spread_factor: float
    max_character_factor: (
        float  # no character and no space multiplies a prefix by more: what falls short even so ...
    )
    max_space_factor: float  # ... is not scored
    blank_factor: float


class Search(NamedTuple):
    """What all utterances with the same settings share."""

    weights: Weights
    lexicon: Lexicon
    trie: Trie
    hotwords: Automaton


@compiled
def clamped(nats: float) -> float:
    return min(MAX_STEP_NATS, max(-MAX_STEP_NATS, nats))


@compiled
def look_ahead(weights: Weights, lexicon: Lexicon, node: int) -> float:
    """What a prefix has been charged (nats, at most 0) for the likeliest word that starts with it.

    Without it the whole cost of a word falls due at its end, and unlikely prefixes crowd out likely ones until then:
    the look-ahead of Ortmanns, Eiden and Ney (1998), with unigrams.
    """
    if not weights.has_lm or node <= 0:
        return 0.0
    return real(weights.lm_weight * LN10 * lexicon.look_ahead[node])


@compiled
def character_step(
    weights: Weights, lexicon: Lexicon, hotwords: Automaton, node: Record, label: int
) -> tuple[int, int, float]:
    """(lexicon node, hotword state, nats) after one more character."""
    state, nats = 0, 0.0
    if weights.has_lm:
        state = step(lexicon, node.lexicon, label)
        nats = look_ahead(weights, lexicon, state) - look_ahead(weights, lexicon, node.lexicon)
    match = hotwords.next_state[node.hotword, label]
    nats += hotwords.partial_bonus[match] - hotwords.partial_bonus[node.hotword]
    if state < 0 and match == NO_MATCH:
        # No known word and no hotword starts like this: the word is unknown. Each of its characters from here on costs
        # something, or the words that follow would be hidden in it, without spaces.
        nats -= weights.character_penalty
        if not (node.lexicon < 0 and node.hotword == NO_MATCH):
            nats -= weights.unknown_penalty
    elif node.lexicon < 0 and node.hotword == NO_MATCH:
        nats += weights.unknown_penalty
    return state, match, clamped(nats)


@compiled
def word_step(
    search: Search,
    state: SearchState,
    place: int,
    next_words: Array,
    next_backoffs: Array,
    utterance_ends: bool,
) -> tuple[int, float, float, int]:
    """(hotword state, nats, KenLM's log10, context length) when the word at `place` ends there."""
    weights, lexicon, hotwords = search.weights, search.lexicon, search.hotwords
    node = state.nodes[place]
    nats = hotwords.full_bonus[node.hotword] - hotwords.partial_bonus[node.hotword]
    match = NO_MATCH
    if not utterance_ends:
        match = hotwords.next_state[node.hotword, weights.space]
        nats += hotwords.partial_bonus[match]
    value, length = 0.0, 0
    if weights.has_lm:
        start = node.word_start
        word = whole(lexicon.word[node.lexicon]) if node.lexicon > 0 else 0
        value, length = query(
            search.trie,
            state.context_words[start],
            state.context_backoffs[start],
            whole(state.nodes[start].context_length),
            word,
            next_words,
            next_backoffs,
        )
        charged = node.lexicon < 0 and node.hotword == NO_MATCH
        unknown = word == 0 and hotwords.known[node.hotword] == 0
        if unknown and not charged:
            nats -= weights.unknown_penalty
        elif charged and not unknown:
            nats += weights.unknown_penalty
        nats += weights.lm_weight * LN10 * value + weights.word_bonus
        nats -= look_ahead(weights, lexicon, node.lexicon)
    return match, clamped(nats), value, length
