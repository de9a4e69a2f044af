"""The words of a language model as a trie over an alphabet's labels: which prefixes can become a word."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError
from lm.numba_cache import Array, compiled, whole

MAX_LABELS = 64
MAX_WORD_LENGTH = 64
ROOT = 0
NO_NODE = -1
"""The node of a prefix that no known word has."""


class Lexicon(NamedTuple):
    """Node 0 is the empty prefix. The children of a node lie together in the order of their labels: `labels` has one
    bit for each, `first_child` is the first one's number, `word` is the word's id or 0. `look_ahead` is the log10
    unigram probability of the likeliest word with this prefix; 0 at the root."""

    labels: Array
    first_child: Array
    word: Array
    look_ahead: Array


@compiled
def step(lexicon: Lexicon, node: int, label: int) -> int:
    """The node after one more label, or NO_NODE."""
    if node < 0:
        return -1
    mask = lexicon.labels[node]
    if (mask >> np.uint64(label)) & np.uint64(1) == np.uint64(0):
        return -1
    below = mask & ((np.uint64(1) << np.uint64(label)) - np.uint64(1))
    # Count the bits in parallel (Warren, Hacker's Delight, section 5-1); the compiler knows this form.
    below -= (below >> np.uint64(1)) & np.uint64(0x5555555555555555)
    below = (below & np.uint64(0x3333333333333333)) + (
        (below >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    below = (below + (below >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    count = (below * np.uint64(0x0101010101010101)) >> np.uint64(56)
    return whole(lexicon.first_child[node]) + whole(count)


def build(vocabulary: NDArray[np.bytes_], alphabet: str, unigrams: NDArray[np.float32]) -> Lexicon:
    """The trie of every word of the vocabulary that the alphabet can spell; a word's id is its position. `unigrams`
    are the words' log10 probabilities without a context."""
    if len(alphabet) > MAX_LABELS:
        raise LanguageError(
            f"The alphabet has {len(alphabet)} characters: a search with a language model handles at most "
            f"{MAX_LABELS}."
        )
    spellings, numbers = spell(vocabulary, alphabet)
    # `same` counts the labels that a word shares with the one before it: behind those, its nodes are new.
    differs = spellings[1:] != spellings[:-1]
    same = np.concatenate(([-1], differs.argmax(axis=1))) if len(spellings) else np.zeros(0, np.int64)
    lengths = (spellings != 0).sum(axis=1)
    parents = np.zeros(len(spellings), dtype=np.int64)
    masks, firsts, words = [np.zeros(1, np.uint64)], [np.zeros(1, np.int32)], [np.zeros(1, np.int32)]
    parents_of = [np.zeros(1, np.int64)]
    total = 1
    for depth in range(int(lengths.max(initial=0))):
        alive = lengths > depth
        fresh = alive & (same <= depth)
        count = int(fresh.sum())
        nodes = total - 1 + np.cumsum(fresh)
        new_parents = parents[fresh] - (total - len(masks[-1]))
        labels = spellings[fresh, depth].astype(np.uint64) - np.uint64(1)
        np.bitwise_or.at(masks[-1], new_parents, np.uint64(1) << labels)
        firsts[-1][new_parents[::-1]] = (total + np.arange(count))[
            ::-1
        ]  # the last one written is the first child
        parents_of.append(parents[fresh])
        parents = np.where(alive, nodes, parents)
        level_words = np.zeros(count, np.int32)
        ending = lengths == depth + 1
        level_words[nodes[ending] - total] = numbers[ending]
        masks.append(np.zeros(count, np.uint64))
        firsts.append(np.zeros(count, np.int32))
        words.append(level_words)
        total += count
    arrays = [np.concatenate(parts) for parts in (masks, firsts, words)]
    arrays.append(_look_ahead(arrays[2], parents_of, unigrams))
    for array in arrays:
        array.flags.writeable = False
    return Lexicon(*arrays)


def _look_ahead(
    words: Array, parents_of: list[NDArray[np.int64]], unigrams: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The maximum over each node's subtree, computed from the deepest level up."""
    look_ahead = np.where(words > 0, unigrams[words], -np.inf).astype(np.float32)
    end = len(words)
    for parents in reversed(parents_of[1:]):
        np.maximum.at(look_ahead, parents, look_ahead[end - len(parents) : end])
        end -= len(parents)
    look_ahead[ROOT] = 0.0
    return look_ahead


def spell(vocabulary: NDArray[np.bytes_], alphabet: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Sorted rows of label + 1, padded with 0, and each row's word id; words that cannot be spelled are left out."""
    codes = np.zeros(256, dtype=np.uint8)
    if any(ord(character) > 127 for character in alphabet):
        raise LanguageError("A search with a language model handles only alphabets of ASCII characters.")
    for label, character in enumerate(alphabet):
        if character != " ":
            codes[ord(character)] = label + 1
    short = np.char.str_len(vocabulary) <= MAX_WORD_LENGTH
    numbers = np.flatnonzero(short).astype(np.int32)
    rows = vocabulary[short].astype(f"S{MAX_WORD_LENGTH}").view(np.uint8).reshape(-1, MAX_WORD_LENGTH)
    spelled = codes[rows]
    good = ((spelled != 0) == (rows != 0)).all(axis=1) & (rows[:, 0] != 0) & (numbers != 0)
    spelled, numbers = np.ascontiguousarray(spelled[good]), numbers[good]
    order = np.argsort(spelled.view(f"S{MAX_WORD_LENGTH}").ravel(), kind="stable")
    return spelled[order], numbers[order]
