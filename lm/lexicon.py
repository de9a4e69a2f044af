"""The words a language model knows, as a trie over an alphabet's labels: which beginnings can become a word."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm.compiled import Array, compiled, whole
from lm.errors import LanguageError

MAXIMUM_LABELS = 64
LONGEST_WORD = 64
ROOT = 0
NOWHERE = -1
"""The state of a beginning that no known word has."""


@dataclass(frozen=True)
class Lexicon:
    """Node 0 is the empty beginning. The children of a node lie together in the order of their labels: `labels`
    has one bit for each, `first_child` says where they begin, `word` is the word's number or 0. `promise` is the
    log10 of the likeliest word that begins so, by itself; 0 where nothing has begun."""

    labels: Array
    first_child: Array
    word: Array
    promise: Array


@compiled
def step(labels: Array, first_child: Array, node: int, label: int) -> int:
    """The node after one more label, or NOWHERE."""
    if node < 0:
        return -1
    mask = labels[node]
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
    return whole(first_child[node]) + whole(count)


def build(vocabulary: NDArray[np.bytes_], alphabet: str, alone: NDArray[np.float32]) -> Lexicon:
    """The trie of every word of the vocabulary that the alphabet can spell; its position is its number. `alone` has
    each word's log10 without a context."""
    if len(alphabet) > MAXIMUM_LABELS:
        raise LanguageError(
            f"The alphabet has {len(alphabet)} characters: a search with a language model handles at most "
            f"{MAXIMUM_LABELS}."
        )
    spellings, numbers = spell(vocabulary, alphabet)
    # `same` counts the labels that a word shares with the one before it: where it ends, a new node begins.
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
    arrays.append(_promises(arrays[2], parents_of, alone))
    for array in arrays:
        array.flags.writeable = False
    return Lexicon(*arrays)


def _promises(
    words: Array, parents_of: list[NDArray[np.int64]], alone: NDArray[np.float32]
) -> NDArray[np.float32]:
    """From the deepest level up: a beginning promises what its likeliest end does."""
    promise = np.where(words > 0, alone[words], -np.inf).astype(np.float32)
    end = len(words)
    for parents in reversed(parents_of[1:]):
        np.maximum.at(promise, parents, promise[end - len(parents) : end])
        end -= len(parents)
    promise[ROOT] = 0.0
    return promise


def spell(vocabulary: NDArray[np.bytes_], alphabet: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Sorted rows of label + 1 (0 fills up), and the number of each row's word; the rest is left out."""
    codes = np.zeros(256, dtype=np.uint8)
    if any(ord(character) > 127 for character in alphabet):
        raise LanguageError("A search with a language model handles only alphabets of ASCII characters.")
    for label, character in enumerate(alphabet):
        if character != " ":
            codes[ord(character)] = label + 1
    short = np.char.str_len(vocabulary) <= LONGEST_WORD
    numbers = np.flatnonzero(short).astype(np.int32)
    rows = vocabulary[short].astype(f"S{LONGEST_WORD}").view(np.uint8).reshape(-1, LONGEST_WORD)
    spelled = codes[rows]
    good = ((spelled != 0) == (rows != 0)).all(axis=1) & (rows[:, 0] != 0) & (numbers != 0)
    spelled, numbers = np.ascontiguousarray(spelled[good]), numbers[good]
    order = np.argsort(spelled.view(f"S{LONGEST_WORD}").ravel(), kind="stable")
    return spelled[order], numbers[order]
