"""Scores of extending a prefix by a character or a word end: n-gram, look-ahead, bonuses, penalties, hotwords."""

import math
from typing import NamedTuple

from lm.ngram.query import Trie, query
from lm.numba_cache import Array, Record, as_float, as_int, compiled
from lm.search.hotwords import NO_MATCH, Automaton
from lm.search.lexicon import Lexicon, next_node
from lm.search.state import SearchState

LN10 = math.log(10.0)
MAX_STEP_NATS = 600.0
"""The limit of what one label adds or subtracts: exp() of it still fits in a double."""


class Weights(NamedTuple):
    """The settings of a search as the kernels read them. A `_factor` multiplies a probability."""

    width: int
    labels: int
    space: int
    has_lm: bool
    lm_weight: float
    word_bonus: float
    unknown_penalty: float
    character_penalty: float  # for each character that continues neither a known word nor a hotword
    token_floor: float
    spread_factor: float
    # Upper bounds of the factor of a character and of a space. An extension below the threshold even with the bound
    # is dropped without scoring it.
    max_character_factor: float
    max_space_factor: float
    blank_factor: float


class Search(NamedTuple):
    """Read-only inputs of the kernels, shared by all utterances with the same settings."""

    weights: Weights
    lexicon: Lexicon
    trie: Trie
    hotwords: Automaton


@compiled
def clamped(nats: float) -> float:
    return min(MAX_STEP_NATS, max(-MAX_STEP_NATS, nats))


@compiled
def look_ahead_score(weights: Weights, lexicon: Lexicon, node: int) -> float:
    """The weighted unigram score (nats, at most 0) of the most probable word that starts with this prefix.

    It is applied from the first character on and replaced by the true score at the word end. Without it, prefixes of
    improbable words displace prefixes of probable ones until their word ends (Ortmanns, Eiden and Ney 1998).
    """
    if not weights.has_lm or node <= 0:
        return 0.0
    return as_float(weights.lm_weight * LN10 * lexicon.look_ahead[node])


@compiled
def score_character(
    weights: Weights, lexicon: Lexicon, hotwords: Automaton, node: Record, label: int
) -> tuple[int, int, float]:
    """(lexicon node, hotword state, nats) after one more character."""
    lexicon_node, nats = 0, 0.0
    if weights.has_lm:
        lexicon_node = next_node(lexicon, node.lexicon, label)
        before = look_ahead_score(weights, lexicon, node.lexicon)
        nats = look_ahead_score(weights, lexicon, lexicon_node) - before
    match = hotwords.next_state[node.hotword, label]
    nats += hotwords.partial_bonus[match] - hotwords.partial_bonus[node.hotword]
    was_unknown = node.lexicon < 0 and node.hotword == NO_MATCH
    if lexicon_node < 0 and match == NO_MATCH:
        # The word is unknown. If its further characters were free, the search would join the following words to it.
        nats -= weights.character_penalty
        if not was_unknown:
            nats -= weights.unknown_penalty
    elif was_unknown:
        nats += weights.unknown_penalty
    return lexicon_node, match, clamped(nats)


@compiled
def score_word_end(
    search: Search,
    state: SearchState,
    node_id: int,
    next_words: Array,
    next_backoffs: Array,
    utterance_ends: bool,
) -> tuple[int, float, float, int]:
    """(hotword state, nats, KenLM's log10, context length) if the word at `node_id` ends there.

    Writes the n-gram context after the word to `next_words` and `next_backoffs`.
    """
    weights, lexicon, hotwords = search.weights, search.lexicon, search.hotwords
    node = state.nodes[node_id]
    nats = hotwords.full_bonus[node.hotword] - hotwords.partial_bonus[node.hotword]
    match = NO_MATCH
    if not utterance_ends:
        match = hotwords.next_state[node.hotword, weights.space]
        nats += hotwords.partial_bonus[match]
    value, length = 0.0, 0
    if weights.has_lm:
        start = node.word_start
        word = as_int(lexicon.word[node.lexicon]) if node.lexicon > 0 else 0
        value, length = query(
            search.trie,
            state.context_words[start],
            state.context_backoffs[start],
            as_int(state.nodes[start].context_length),
            word,
            next_words,
            next_backoffs,
        )
        penalized = node.lexicon < 0 and node.hotword == NO_MATCH
        unknown = word == 0 and hotwords.known[node.hotword] == 0
        if unknown and not penalized:
            nats -= weights.unknown_penalty
        elif penalized and not unknown:
            nats += weights.unknown_penalty
        nats += weights.lm_weight * LN10 * value + weights.word_bonus
        nats -= look_ahead_score(weights, lexicon, node.lexicon)
    return match, clamped(nats), value, length
