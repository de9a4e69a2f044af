"""What every live prefix is worth if the utterance ends here: its last word and the sentence's end are scored."""

import math

import numpy as np

from lm.compiled import Array, compiled, whole
from lm.ngram_kernel import END_WORD, query
from lm.search_state import COUNT, LOG_SCALE, NO_LABEL
from lm.search_steps import HAS_LM, LM_WEIGHT, LN10, SPACE, word_step

SCORE, ACOUSTIC, LANGUAGE, LAST_WORD = range(4)


@compiled
def endings(
    shape: Array,
    weights: Array,
    nodes: Array,
    children: Array,
    context_words: Array,
    context_backoffs: Array,
    beams: Array,
    free: Array,
    counters: Array,
    scale: Array,
    lexicon_labels: Array,
    lexicon_children: Array,
    lexicon_words: Array,
    lexicon_promises: Array,
    ngram_file: Array,
    ngram_floats: Array,
    ngram_layout: Array,
    hotword_following: Array,
    hotword_lent: Array,
    hotword_granted: Array,
    hotword_known: Array,
) -> Array:
    """A row for each live prefix: score, acoustic score, KenLM's log10 total, KenLM's log10 of the last word.

    "word" and "word " say the same: the one with the space is added to the other and its own score is -inf.
    """
    lexicon = (lexicon_labels, lexicon_children, lexicon_words, lexicon_promises)
    ngram = (ngram_file, ngram_floats, ngram_layout)
    hotwords = (hotword_following, hotword_lent, hotword_granted, hotword_known)
    size = context_words.shape[1]
    words, spare_words = np.empty(size, np.int32), np.empty(size, np.int32)
    backoffs, spare_backoffs = np.empty(size, np.float32), np.empty(size, np.float32)
    result = np.empty((counters[COUNT], 4), np.float64)
    for beam in range(counters[COUNT]):
        place = beams[beam].node
        label = nodes[place].label
        mass = beams[beam].blank + beams[beam].label
        if label == shape[SPACE] and nodes[place].parent >= 0 and nodes[nodes[place].parent].beam >= 0:
            result[beam, SCORE] = -np.inf
            continue
        if label != shape[SPACE] and label != NO_LABEL and shape[SPACE] >= 0:
            spaced = children[place, shape[SPACE]]
            if spaced >= 0 and nodes[spaced].beam >= 0:
                other = nodes[spaced].beam
                # The mass of the other carries its own bias: take it out, so that both are alike.
                bias = nodes[spaced].bias - nodes[place].bias
                mass += (beams[other].blank + beams[other].label) * math.exp(-bias)
        acoustic = math.log(mass) + scale[LOG_SCALE] - nodes[place].bias
        nats, language, last_word = 0.0, nodes[place].language, math.nan
        if label == shape[SPACE] or label == NO_LABEL:
            nats = -hotwords[1][nodes[place].hotword]
            words[:] = context_words[place]
            backoffs[:] = context_backoffs[place]
            length = whole(nodes[place].context_length)
        else:
            _, nats, last_word, length = word_step(
                nodes,
                place,
                shape,
                weights,
                lexicon,
                ngram,
                hotwords,
                context_words,
                context_backoffs,
                words,
                backoffs,
                True,
            )
            language += last_word
            if shape[HAS_LM] == 0:
                last_word = math.nan
        if shape[HAS_LM] == 1:
            end = whole(ngram_layout[0, END_WORD])
            value, _ = query(
                ngram_file,
                ngram_floats,
                ngram_layout,
                words,
                backoffs,
                length,
                end,
                spare_words,
                spare_backoffs,
            )
            language += value
            nats += weights[LM_WEIGHT] * LN10 * value
        result[beam, SCORE] = acoustic + nodes[place].bias + nats
        result[beam, ACOUSTIC] = acoustic
        result[beam, LANGUAGE] = language
        result[beam, LAST_WORD] = last_word
    return result
