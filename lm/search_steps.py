"""What one more letter and the end of a word are worth to a prefix: language model, bonuses, penalties, hotwords."""

import math

from lm.compiled import Array, Arrays, Record, compiled, real, whole
from lm.hotwords import NO_MATCH
from lm.lexicon import step
from lm.ngram_kernel import query

# Places in `weights` and in `shape`.
LM_WEIGHT, WORD_BONUS, UNKNOWN_PENALTY, SPELLING, TOKEN_FLOOR, SPREAD = range(6)
LETTER_GAIN, SPACE_GAIN, BLANK_FACTOR = range(6, 9)
WIDTH, LABELS, SPACE, HAS_LM = range(4)

LN10 = math.log(10.0)
LARGEST_STEP = 600.0
"""No single label may add more nats than a double can hold."""


@compiled
def clamped(nats: float) -> float:
    return min(LARGEST_STEP, max(-LARGEST_STEP, nats))


@compiled
def promised(state: int, shape: Array, weights: Array, lexicon: Arrays) -> float:
    """What a prefix has been charged (nats, at most 0) for the likeliest word that it may yet become.

    Without it a word's price falls due at its end, all at once, and what is unlikely crowds out what is likely until
    then: the look-ahead of Ortmanns, Eiden and Ney (1998), with words alone.
    """
    if shape[HAS_LM] == 0 or state <= 0:
        return 0.0
    return real(weights[LM_WEIGHT] * LN10 * lexicon[3][state])


@compiled
def letter_step(
    node: Record, label: int, shape: Array, weights: Array, lexicon: Arrays, hotwords: Arrays
) -> tuple[int, int, float]:
    """(lexicon state, hotword state, nats) after one more letter."""
    state, nats = 0, 0.0
    if shape[HAS_LM] == 1:
        state = step(lexicon[0], lexicon[1], node.lexicon, label)
        nats = promised(state, shape, weights, lexicon) - promised(node.lexicon, shape, weights, lexicon)
    match = hotwords[0][node.hotword, label]
    nats += hotwords[1][match] - hotwords[1][node.hotword]
    if state < 0 and match == NO_MATCH:
        # What no known word begins with and no hotword either is an unknown word already. Each letter from here on has
        # its price: were it free, words that follow would hide in it, unparted.
        nats -= weights[SPELLING]
        if not (node.lexicon < 0 and node.hotword == NO_MATCH):
            nats -= weights[UNKNOWN_PENALTY]
    elif node.lexicon < 0 and node.hotword == NO_MATCH:
        nats += weights[UNKNOWN_PENALTY]
    return state, match, clamped(nats)


@compiled
def word_step(
    nodes: Array,
    place: int,
    shape: Array,
    weights: Array,
    lexicon: Arrays,
    ngram: Arrays,
    hotwords: Arrays,
    context_words: Array,
    context_backoffs: Array,
    next_words: Array,
    next_backoffs: Array,
    speech_ends: bool,
) -> tuple[int, float, float, int]:
    """(hotword state, nats, KenLM's log10, context length) when the word at `place` ends there."""
    node = nodes[place]
    nats = hotwords[2][node.hotword] - hotwords[1][node.hotword]
    match = NO_MATCH
    if not speech_ends:
        match = hotwords[0][node.hotword, shape[SPACE]]
        nats += hotwords[1][match]
    value, length = 0.0, 0
    if shape[HAS_LM] == 1:
        start = node.word_start
        word = whole(lexicon[2][node.lexicon]) if node.lexicon > 0 else 0
        value, length = query(
            ngram[0],
            ngram[1],
            ngram[2],
            context_words[start],
            context_backoffs[start],
            whole(nodes[start].context_length),
            word,
            next_words,
            next_backoffs,
        )
        charged = node.lexicon < 0 and node.hotword == NO_MATCH
        unknown = word == 0 and hotwords[3][node.hotword] == 0
        if unknown and not charged:
            nats -= weights[UNKNOWN_PENALTY]
        elif charged and not unknown:
            nats += weights[UNKNOWN_PENALTY]
        nats += weights[LM_WEIGHT] * LN10 * value + weights[WORD_BONUS]
        nats -= promised(node.lexicon, shape, weights, lexicon)
    return match, clamped(nats), value, length
