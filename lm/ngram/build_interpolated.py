"""Several n-gram models become one, and one becomes small.

Merging: P(w|h) = sum of a_i(h) P_i(w|h), where a part's weight a_i(h) grows with its share and with how often h stands
in its text: who has seen a history says what follows it. Pruning (relative entropy, Stolcke 1998): the n-gram leaves
first whose probability the shorter history gives nearly as well, weighed by how often its history is met in the text.
(Kneser-Ney's lower orders are no probabilities of histories, so these are counted.) Then all backoffs are computed
anew.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError
from lm.ngram.build_history_counts import count_histories
from lm.ngram.table import BEGIN, MIN_PROBABILITY, RowIndex
from lm.ngram.trie import NGram
from lm.ngram.trie_arrays import Level, list_ngrams

UNSEEN_FREQUENCY = 1e-12
"""What a history counts in a text that does not hold it: then the shares alone decide."""
BISECTIONS = 40
Floats = NDArray[np.float64]


@dataclass
class InterpolatedModel:
    """One model in arrays: linear probabilities, and how often each history is met."""

    words: list[str]
    levels: list[Level]
    probs: list[Floats]
    history_frequencies: list[Floats]


def interpolate(parts: Sequence[tuple[Path, Iterable[str], float]]) -> InterpolatedModel:
    """Of (a KenLM file, the normal lines it was built from, its share): one model that knows what any of them knows."""
    shares = np.array([share for *_, share in parts])
    if not parts or (shares <= 0).any():
        raise LanguageError("merging wants models, each with a share above 0")
    shares = shares / shares.sum()
    models = [NGram.load(path) for path, *_ in parts]
    if len(orders := {model.order for model in models}) > 1:
        raise LanguageError(f"models of one order can be merged, not of the orders {sorted(orders)}")
    words, listed = _with_common_word_ids(models)
    levels = _union(words, listed)
    history_frequencies = [count_histories(lines, words, levels) for _, lines, _ in parts]
    each = [_unigrams(part[0], words) for part in listed]
    probs = [_sum(each, shares)]
    for order in range(2, len(levels) + 1):
        level = levels[order - 1]
        each = [_higher_order(part, order, level, low) for part, low in zip(listed, each, strict=True)]
        seen = [
            share * (one[order - 2] + UNSEEN_FREQUENCY)
            for share, one in zip(shares, history_frequencies, strict=True)
        ]
        history = RowIndex(levels[order - 2].words).find(level.words[:, 1:])
        probs.append(_sum(each, [(one / sum(seen))[history] for one in seen]))
    return InterpolatedModel(
        words, levels, probs, [_sum(one, shares) for one in zip(*history_frequencies, strict=True)]
    )


def _sum(values: Iterable[Floats], weights: Iterable[Any]) -> Floats:
    return np.asarray(sum(weight * one for weight, one in zip(weights, values, strict=True)))


def _union(words: list[str], listed: list[list[Level]]) -> list[Level]:
    """Every n-gram that any part has, once."""
    levels = [
        Level(np.arange(len(words), dtype=np.int32)[:, None], *_no_values(), np.zeros(len(words), np.int64))
    ]
    for place in range(1, len(listed[0])):
        rows = listed[0][place].words
        for more in listed[1:]:
            rows = np.concatenate([rows, more[place].words[RowIndex(rows).find(more[place].words) < 0]])
        levels.append(Level(rows, *_no_values(), RowIndex(levels[-1].words).find(rows[:, :-1])))
    return levels


def _no_values() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A merged level's log values: not kept, its linear ones stand beside it."""
    return np.empty(0, np.float32), np.empty(0, np.float32)


def _with_common_word_ids(models: Sequence[NGram]) -> tuple[list[str], list[list[Level]]]:
    numbers: dict[str, int] = {}
    listed = []
    for model in models:
        own = [word.decode() for word in model.vocabulary().tolist()]
        common = np.array([numbers.setdefault(word, len(numbers)) for word in own], np.int32)
        levels = list_ngrams(model)
        for level in levels:
            level.words = common[level.words]
        listed.append(levels)
    return list(numbers), listed


def _unigrams(level: Level, words: list[str]) -> Floats:
    """A part's probability of each word by itself; what it does not know has its unknown word's."""
    probs = np.zeros(len(words))
    probs[level.words[:, 0]] = np.power(10.0, level.probs.astype(np.float64))
    known = np.zeros(len(words), bool)
    known[level.words[:, 0]] = True
    probs[~known] = probs[words.index("<unk>")]
    probs[words.index(BEGIN)] = 0.0
    probs /= probs.sum()
    probs[words.index(BEGIN)] = 1.0
    return probs


def _higher_order(part: list[Level], order: int, level: Level, low: Floats) -> Floats:
    """A part's probability of each n-gram of this order, backed off where it has none; `low`: of the order below."""
    own = RowIndex(part[order - 1].words).find(level.words)
    history = RowIndex(part[order - 2].words).find(level.words[:, 1:])
    backoff = np.where(
        history >= 0, np.power(10.0, part[order - 2].backoffs[history].astype(np.float64)), 1.0
    )
    said = np.power(10.0, part[order - 1].probs[own].astype(np.float64))
    return np.where(own >= 0, said, backoff * low[level.parents])


def prune_to_size(model: InterpolatedModel, max_bytes: float) -> InterpolatedModel:
    """The best of the model that a trie of this size holds."""
    kept = [np.ones(len(level.words), bool) for level in model.levels]
    if _size(model.words, kept) <= max_bytes:
        return model
    losses = [_losses(model, order) for order in range(2, len(model.levels) + 1)]
    low, high = math.log(1e-15), 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        kept = _kept(model, losses, math.exp(middle))
        if _size(model.words, kept) > max_bytes:
            low = middle
        else:
            high = middle
    kept = _kept(model, losses, math.exp(high))
    if (size := _size(model.words, kept)) > max_bytes:
        raise LanguageError(
            f"{len(model.words):,} words alone take {size / 1e6:.1f} MB: allow more, or raise minimum_count"
        )
    levels: list[Level] = []
    places = np.zeros(0, np.int64)
    for level, keep in zip(model.levels, kept, strict=True):
        parents = places[level.parents[keep]] if levels else level.parents
        levels.append(Level(level.words[keep], *_no_values(), parents))
        places = np.cumsum(keep) - 1
    probs = [values[keep] for values, keep in zip(model.probs, kept, strict=True)]
    history_frequencies = [
        values[keep] for values, keep in zip(model.history_frequencies, kept[:-1], strict=True)
    ]
    return InterpolatedModel(model.words, levels, probs, history_frequencies)


def _losses(model: InterpolatedModel, order: int) -> tuple[Floats, NDArray[np.int64]]:
    """What leaving each n-gram of this order out costs in nats a word of text, and the place of its history."""
    level = model.levels[order - 1]
    histories = model.levels[order - 2].words
    at = RowIndex(histories).find(level.words[:, 1:])
    said, below = model.probs[order - 1], model.probs[order - 2][level.parents]
    left = np.maximum(1.0 - np.bincount(at, said, len(histories)), MIN_PROBABILITY)[at]
    left_below = np.maximum(1.0 - np.bincount(at, below, len(histories)), MIN_PROBABILITY)[at]
    change = np.log((left + said) / (left_below + below)) - np.log(left / left_below)
    backed_off = np.log(below) + np.log((left + said) / (left_below + below))
    loss = model.history_frequencies[order - 2][at] * (said * (np.log(said) - backed_off) - left * change)
    return np.maximum(loss, 0.0), at


def _kept(
    model: InterpolatedModel, losses: list[tuple[Floats, NDArray[np.int64]]], min_loss: float
) -> list[NDArray[np.bool_]]:
    """Which n-grams stay: whose loss counts, and what such a one hangs on in the trie."""
    kept = [np.ones(len(level.words), bool) for level in model.levels]
    for order in range(len(model.levels), 1, -1):
        loss, _ = losses[order - 2]
        kept[order - 1] = loss >= min_loss
        if order < len(model.levels):
            longer = kept[order]
            kept[order - 1][losses[order - 1][1][longer]] = True
            kept[order - 1][model.levels[order].parents[longer]] = True
    return kept


def _size(words: list[str], kept: list[NDArray[np.bool_]]) -> float:
    """About the bytes of a KenLM trie with 8-bit values and short pointers, its words spelled out at the end."""
    counts = [int(keep.sum()) for keep in kept]
    tables = 4 * 256 * (2 * len(counts) - 3)
    size = 8.0 * (24 * counts[0] + sum(len(word) + 1 for word in words) + tables)
    word_bits = counts[0].bit_length()
    for count, longer in zip(counts[1:], [*counts[2:], None], strict=True):
        bits = word_bits + 8.0
        if longer is not None:
            bits += 8 + min(inline + 64 * (longer >> inline) / max(count, 1) for inline in range(32))
        size += count * bits
    return size / 8
