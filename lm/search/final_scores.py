"""The final score of every live prefix, were the utterance to end here: last word and end of sentence included."""

import math

import numpy as np

from lm.ngram.query import END_WORD, query
from lm.numba_cache import Array, compiled, whole
from lm.search.extension_scores import LN10, Search, word_step
from lm.search.state import COUNT, LOG_SCALE, NO_LABEL, SearchState

SCORE, ACOUSTIC, LANGUAGE, LAST_WORD = range(4)


@compiled
def final_scores(search: Search, state: SearchState) -> Array:
    """A row for each live prefix: score, acoustic score, KenLM's log10 total, KenLM's log10 of the last word.

    "word" and "word " are the same text: the one with the space is added to the other and its own score is -inf.
    """
    weights = search.weights
    nodes, beams, counters = state.nodes, state.beams, state.counters
    size = state.context_words.shape[1]
    words, spare_words = np.empty(size, np.int32), np.empty(size, np.int32)
    backoffs, spare_backoffs = np.empty(size, np.float32), np.empty(size, np.float32)
    result = np.empty((counters[COUNT], 4), np.float64)
    for beam in range(counters[COUNT]):
        place = beams[beam].node
        label = nodes[place].label
        mass = beams[beam].blank + beams[beam].label
        if label == weights.space and nodes[place].parent >= 0 and nodes[nodes[place].parent].beam >= 0:
            result[beam, SCORE] = -np.inf
            continue
        if label != weights.space and label != NO_LABEL and weights.space >= 0:
            spaced = state.children[place, weights.space]
            if spaced >= 0 and nodes[spaced].beam >= 0:
                other = nodes[spaced].beam
                # The other's mass contains its own bias: it is taken out, so that both are alike.
                bias = nodes[spaced].bias - nodes[place].bias
                mass += (beams[other].blank + beams[other].label) * math.exp(-bias)
        acoustic = math.log(mass) + state.scale[LOG_SCALE] - nodes[place].bias
        nats, language, last_word = 0.0, nodes[place].language, math.nan
        if label == weights.space or label == NO_LABEL:
            nats = -search.hotwords.partial_bonus[nodes[place].hotword]
            words[:] = state.context_words[place]
            backoffs[:] = state.context_backoffs[place]
            length = whole(nodes[place].context_length)
        else:
            _, nats, last_word, length = word_step(search, state, place, words, backoffs, True)
            language += last_word
            if not weights.has_lm:
                last_word = math.nan
        if weights.has_lm:
            end = whole(search.trie.layout[0, END_WORD])
            value, _ = query(search.trie, words, backoffs, length, end, spare_words, spare_backoffs)
            language += value
            nats += weights.lm_weight * LN10 * value
        result[beam, SCORE] = acoustic + nodes[place].bias + nats
        result[beam, ACOUSTIC] = acoustic
        result[beam, LANGUAGE] = language
        result[beam, LAST_WORD] = last_word
    return result
