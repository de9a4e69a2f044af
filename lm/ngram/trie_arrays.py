"""Reads all n-grams of a KenLM trie into arrays: word ids (the predicted word first, then its context backwards),
log10 probabilities, log10 backoffs, parents.

The parent of an n-gram in the trie is the n-gram without its farthest context word.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm.ngram.query import (
    BASE_BIT,
    TOTAL_BITS,
    UNIGRAMS_AT,
    WORD_BITS,
    Trie,
    backoff_at,
    bits_at,
    pointer_at,
    prob_at,
)
from lm.ngram.trie import NGram
from lm.numba_cache import compiled


@dataclass
class Level:
    """All n-grams of one order, sorted as in the trie. `parents` are indices in the level below."""

    words: NDArray[np.int32]
    probs: NDArray[np.float32]
    backoffs: NDArray[np.float32]
    parents: NDArray[np.int64]


@compiled
def _read_children(
    trie: Trie,
    order: int,
    begins: NDArray[np.int64],
    parent_words: NDArray[np.int32],
    words: NDArray[np.int32],
    probs: NDArray[np.float32],
    backoffs: NDArray[np.float32],
    parents: NDArray[np.int64],
    pointers: NDArray[np.int64],
) -> None:
    row = trie.layout[order - 1]
    word_bits = trie.layout[0, WORD_BITS]
    longest = order == trie.layout[0, 0]
    for parent in range(len(parent_words)):
        for index in range(begins[parent], begins[parent + 1]):
            for position in range(order - 1):
                words[index, position] = parent_words[parent, position]
            words[index, order - 1] = bits_at(trie.file, row[BASE_BIT] + index * row[TOTAL_BITS], word_bits)
            probs[index] = prob_at(trie, row, word_bits, index)
            parents[index] = parent
            if not longest:
                backoffs[index] = backoff_at(trie, row, word_bits, index)
                pointers[index] = pointer_at(trie.file, row, index)
    if not longest:
        pointers[len(words)] = pointer_at(trie.file, row, len(words))


def read_ngrams(ngram: NGram) -> list[Level]:
    """All n-grams of the model, one level per order."""
    count = ngram.counts[0]
    at = int(ngram.trie.layout[0, UNIGRAMS_AT])
    pairs = ngram.trie.floats[2 * at : 2 * (at + 2 * (count + 1))].reshape(-1, 4)
    levels = [
        Level(
            words=np.arange(count, dtype=np.int32)[:, None],
            probs=pairs[:count, 0].copy(),
            backoffs=pairs[:count, 1].copy(),
            parents=np.zeros(count, np.int64),
        )
    ]
    begins = ngram.trie.file[at + 1 : at + 2 * (count + 1) : 2].astype(np.int64)
    for order in range(2, ngram.order + 1):
        size = ngram.counts[order - 1]
        level = Level(
            words=np.zeros((size, order), np.int32),
            probs=np.zeros(size, np.float32),
            backoffs=np.zeros(size, np.float32),
            parents=np.zeros(size, np.int64),
        )
        pointers = np.zeros(size + 1, np.int64)
        parent_words = levels[-1].words
        _read_children(
            ngram.trie,
            order,
            begins,
            parent_words,
            level.words,
            level.probs,
            level.backoffs,
            level.parents,
            pointers,
        )
        begins = pointers
        levels.append(level)
    return levels
