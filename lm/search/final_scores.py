"""The final score of every live prefix at the end of an utterance: with the last word and the sentence end."""

import math

import numpy as np

from lm.ngram.query import END_WORD, query
from lm.numba_cache import Array, as_int, compiled
from lm.search.extension_scores import LN10, Search, score_word_end
from lm.search.state import COUNT, LOG_SCALE, NO_LABEL, SearchState

SCORE, ACOUSTIC, LM_SCORE, LAST_WORD_LM_SCORE = range(4)


@compiled
def final_scores(search: Search, state: SearchState) -> Array:
    """A row for each live prefix: score, acoustic score, KenLM's log10 total, KenLM's log10 of the last word.

    "word" and "word " are the same text: the probability of the second is added to the first, and its own score
    becomes -inf.
    """
    weights = search.weights
    nodes, beams, counters = state.nodes, state.beams, state.counters
    size = state.context_words.shape[1]
    words, spare_words = np.empty(size, np.int32), np.empty(size, np.int32)
    backoffs, spare_backoffs = np.empty(size, np.float32), np.empty(size, np.float32)
    result = np.empty((counters[COUNT], 4), np.float64)
    for beam in range(counters[COUNT]):
        node_id = beams[beam].node
        label = nodes[node_id].label
        mass = beams[beam].blank + beams[beam].label
        if label == weights.space and nodes[node_id].parent >= 0 and nodes[nodes[node_id].parent].beam >= 0:
            result[beam, SCORE] = -np.inf
            continue
        if label != weights.space and label != NO_LABEL and weights.space >= 0:
            with_space = state.children[node_id, weights.space]
            if with_space >= 0 and nodes[with_space].beam >= 0:
                other = nodes[with_space].beam
                # Remove the bias of the space from the other's mass, so that both have the same bias.
                bias = nodes[with_space].bias - nodes[node_id].bias
                mass += (beams[other].blank + beams[other].label) * math.exp(-bias)
        acoustic = math.log(mass) + state.scale[LOG_SCALE] - nodes[node_id].bias
        nats, lm_score, last_word_lm_score = 0.0, nodes[node_id].lm_score, math.nan
        if label == weights.space or label == NO_LABEL:
            nats = -search.hotwords.partial_bonus[nodes[node_id].hotword]
            words[:] = state.context_words[node_id]
            backoffs[:] = state.context_backoffs[node_id]
            length = as_int(nodes[node_id].context_length)
        else:
            _, nats, last_word_lm_score, length = score_word_end(
                search, state, node_id, words, backoffs, True
            )
            lm_score += last_word_lm_score
            if not weights.has_lm:
                last_word_lm_score = math.nan
        if weights.has_lm:
            end = as_int(search.trie.layout[0, END_WORD])
            value, _ = query(search.trie, words, backoffs, length, end, spare_words, spare_backoffs)
            lm_score += value
            nats += weights.lm_weight * LN10 * value
        result[beam, SCORE] = acoustic + nodes[node_id].bias + nats
        result[beam, ACOUSTIC] = acoustic
        result[beam, LM_SCORE] = lm_score
        result[beam, LAST_WORD_LM_SCORE] = last_word_lm_score
    return result
