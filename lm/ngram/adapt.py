"""A finished n-gram model leaned towards somebody's own text: new words enter, its word sequences gain weight.

A context h of the text mixes P(w|h) = (1 - a) P_base(w|h) + a count(hw) / count(h), where a = share count(h) /
(count(h) + s) grows with what the text knows of h but stays below the share. Then all backoffs are computed anew.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError
from lm.ngram.build import BuildSettings, convert
from lm.ngram.table import BEGIN, END, RowIndex, write_arpa
from lm.ngram.toolchain import Progress
from lm.ngram.trie import NGram
from lm.ngram.trie_arrays import Level, list_ngrams

Counts = list[Counter[tuple[int, ...]]]


@dataclass(frozen=True)
class AdaptSettings:
    """How far to lean."""

    # The most that a context may take from the text; words without context take a fifth of it.
    share: float = 0.5
    # How often a context must stand in the text to take half of that.
    half_weight_count: float = 5.0

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise LanguageError(f"the share must lie between 0 and 1, not {self.share}")
        if not self.half_weight_count > 0.0:
            raise LanguageError(f"half_after must be above 0, not {self.half_weight_count}")

    def text_weight(self, count: NDArray[np.float64]) -> NDArray[np.float64]:
        """The part that contexts of these counts take from the text."""
        return self.share * count / (count + self.half_weight_count)


@dataclass(frozen=True)
class AdaptReport:
    """What an adaptation did."""

    lines: int
    words: int
    new_words: tuple[str, ...]
    ngrams: tuple[int, ...]


def adapt(
    base: Path, lines: Iterable[str], out: Path, settings: AdaptSettings, progress: Progress
) -> AdaptReport:
    """Write the adapted model to `out`; `lines` are normal."""
    ngram = NGram.load(base)
    words = [word.decode() for word in ngram.vocabulary().tolist()]
    numbers = {word: number for number, word in enumerate(words)}
    known = len(words)
    counts, line_count = _count(lines, ngram.order, numbers, words)
    spoken = sum(counts[0].values())
    if not spoken:
        raise LanguageError("there is no word in the text; expected at least one line of words")
    progress(f"{spoken:,} words and line ends, {len(words) - known:,} of them new to the model; mixing")
    levels = list_ngrams(ngram)
    probs = [np.power(10.0, level.probs.astype(np.float64)) for level in levels]
    _mix_words(levels, probs, counts[0], len(words), numbers, settings.share / 5)
    scorer = ngram.kenlm()
    for order in range(2, ngram.order + 1):
        _mix_level(order, levels, probs, counts, scorer, words, known, settings)
    out.parent.mkdir(parents=True, exist_ok=True)
    arpa = out.with_suffix(f".{os.getpid()}.adapting.arpa")
    try:
        progress("writing")
        write_arpa(arpa, levels, probs, words)
        convert(arpa, out, BuildSettings(order=ngram.order, prune=(0,)), progress)
    finally:
        arpa.unlink(missing_ok=True)
    return AdaptReport(line_count, spoken, tuple(words[known:]), tuple(len(level.words) for level in levels))


def _count(lines: Iterable[str], order: int, numbers: dict[str, int], words: list[str]) -> tuple[Counts, int]:
    """N-grams of each order as the trie spells them: the word, then its context backwards."""
    counts: Counts = [Counter() for _ in range(order)]
    line_count = 0
    for line in lines:
        line_count += 1
        for word in line.split():
            if word not in numbers:
                numbers[word] = len(words)
                words.append(word)
        spoken = [numbers[BEGIN], *(numbers[word] for word in line.split()), numbers[END]]
        for place in range(1, len(spoken)):
            for length in range(1, min(order, place + 1) + 1):
                counts[length - 1][tuple(spoken[place - length + 1 : place + 1][::-1])] += 1
    return counts, line_count


def _mix_words(
    levels: list[Level],
    probs: list[NDArray[np.float64]],
    counts: Counter[tuple[int, ...]],
    vocabulary: int,
    numbers: dict[str, int],
    share: float,
) -> None:
    total = sum(counts.values())
    grown = np.zeros(vocabulary)
    grown[: len(probs[0])] = probs[0] * (1.0 - share)
    for (word,), count in counts.items():
        grown[word] += share * count / total
    grown[numbers[BEGIN]] = probs[0][numbers[BEGIN]]
    probs[0] = grown
    levels[0].words = np.arange(vocabulary, dtype=np.int32)[:, None]
    levels[0].parents = np.zeros(vocabulary, np.int64)


def _mix_level(
    order: int,
    levels: list[Level],
    probs: list[NDArray[np.float64]],
    counts: Counts,
    scorer: Any,
    words: list[str],
    known: int,
    settings: AdaptSettings,
) -> None:
    level, found = levels[order - 1], counts[order - 1]
    contexts: Counter[tuple[int, ...]] = Counter()
    for ngram, count in found.items():
        contexts[ngram[1:]] += count
    totals = RowIndex(np.array(list(contexts), np.int32).reshape(-1, order - 1))
    weight = np.array(list(contexts.values()), np.float64)
    # Every word of the base in a context of the text steps back for the text's own words ...
    at = totals.find(level.words[:, 1:])
    probs[order - 1][at >= 0] *= 1.0 - settings.text_weight(weight[at[at >= 0]])
    # ... which are added to the n-grams that exist, and appended where they do not.
    seen = np.array(list(found), np.int32).reshape(-1, order)
    total = weight[totals.find(seen[:, 1:])]
    gained = settings.text_weight(total) * np.array(list(found.values()), np.float64) / total
    place = RowIndex(level.words).find(seen)
    np.add.at(probs[order - 1], place[place >= 0], gained[place >= 0])
    fresh = seen[place < 0]
    if not len(fresh):
        return
    added, rest = gained[place < 0], 1.0 - settings.text_weight(total[place < 0])
    for row, ngram in enumerate(fresh.tolist()):
        if ngram[0] < known:
            added[row] += rest[row] * 10.0 ** _base_log10(
                scorer, [words[number] for number in reversed(ngram)]
            )
    parents = RowIndex(levels[order - 2].words).find(fresh[:, :-1])
    level.words = np.concatenate([level.words, fresh])
    level.parents = np.concatenate([level.parents, parents])
    probs[order - 1] = np.concatenate([probs[order - 1], added])


def _base_log10(scorer: Any, ngram: list[str]) -> float:
    """The base model's log10 probability of the last word after the ones before it."""
    begins = ngram[0] == BEGIN
    ends = ngram[-1] == END
    text = " ".join(ngram[begins : len(ngram) - ends])
    *_, last = scorer.full_scores(text, bos=begins, eos=ends)
    return float(last[0])
