"""What rescoring is worth on a manifest: word errors greedy, searched, ranked again; weights chosen fairly.

The speakers are dealt into parts, usually two; each part is counted with the weights chosen on the others. The list
of readings comes from one search, so a step shows what the knowledge is worth, not what another search would find.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm.decoders import open_decoder
from lm.errors import LanguageError
from lm.hypothesis import Hypothesis
from lm.ngram.trie import NGram
from lm.rescoring.n_best import CONTEXT_SENTENCES, Rescorer, RescoreSettings, log_probs, within_spread
from lm.score import ErrorCounts, word_errors
from lm.search.settings import SearchSettings
from lm.search.tuning import ALPHABET, Clip

Scores = NDArray[np.float64]
# Weights of the search's own n-gram, of each rescorer, and the bonus a word.
Weights = tuple[float, ...]
SEARCH_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1)
RESCORER_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
WORD_BONUSES = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)


@dataclass(frozen=True)
class SubsetResult:
    """Readings ranked by some of the knowledge: errors under the other parts' weights, and under the best of all."""

    rescorers: tuple[str, ...]
    cross_validated_errors: int
    best_errors: int
    best_weights: Weights


@dataclass(frozen=True)
class RescoreFigures:
    """Word errors from step to step."""

    words: int
    greedy_errors: int
    search_errors: int
    steps: tuple[SubsetResult, ...]
    oracle_errors: int


@dataclass(frozen=True)
class NBestScores:
    """The readings of every clip, side by side: [clips, readings], and the rescorers' scores [rescorers, ...]."""

    acoustic: Scores
    ngram: Scores
    rescored: Scores
    words: Scores
    errors: NDArray[np.int64]

    def chosen_errors(self, weights: Weights, used: Sequence[int]) -> NDArray[np.int64]:
        """Errors of each clip's best reading; `weights` are those of the search, the rescorers used, the bonus."""
        total = self.acoustic + weights[0] * self.ngram + weights[-1] * self.words
        for weight, place in zip(weights[1:-1], used, strict=True):
            total = total + weight * self.rescored[place]
        return np.asarray(self.errors[np.arange(len(total)), total.argmax(axis=1)])


def evaluate_rescoring(
    clips: Sequence[Clip],
    ngram: NGram,
    rescorers: dict[str, Rescorer],
    settings: SearchSettings,
    max_hypotheses: int,
    progress: Callable[[str], None],
    carry: bool = True,
    folds: int = 2,
) -> RescoreFigures:
    """Search, rescore and count. `carry`: a rescorer may know what was said before in the same recording."""
    speakers = sorted({clip.speaker for clip in clips})
    if folds < 2:
        raise LanguageError(f"the speakers cannot be divided into {folds} folds: expected 2 or more")
    greedy, beam = open_decoder("greedy", ALPHABET), open_decoder("beam", ALPHABET, ngram)
    greedy_errors = search_errors = ErrorCounts()
    found: list[tuple[Hypothesis, ...]] = []
    scores: list[list[list[float]]] = []
    for place, clip in enumerate(clips):
        plain = greedy.start()
        plain.push(clip.log_probs)
        greedy_errors += word_errors(clip.text, plain.finish()[0].text)
        utterance = beam.start(settings)
        utterance.push(clip.log_probs)
        found.append(within_spread(utterance.finish()[:max_hypotheses], RescoreSettings.spread))
        search_errors += word_errors(clip.text, found[-1][0].text)
        earlier = [
            found[before][0].text
            for before in range(max(0, place - CONTEXT_SENTENCES), place)
            if carry and recording_name(clips[before].audio) == recording_name(clip.audio)
        ]
        texts = [hypothesis.text for hypothesis in found[-1]]
        scores.append([log_probs(rescorer, texts, earlier) for rescorer in rescorers.values()])
        if place % 100 == 99:
            progress(f"{place + 1} of {len(clips)} clips")
    lists = stack_scores(clips, found, scores, settings)
    fold = np.array([speakers.index(clip.speaker) % folds for clip in clips])
    names = tuple(rescorers)
    steps = [choose_weights(lists, fold, names, used) for used in rescorer_subsets(len(names))]
    return RescoreFigures(
        words=search_errors.words,
        greedy_errors=greedy_errors.errors,
        search_errors=search_errors.errors,
        steps=tuple(steps),
        oracle_errors=int(lists.errors.min(axis=1).sum()),
    )


def rescorer_subsets(count: int) -> list[tuple[int, ...]]:
    """No rescorer, each alone, all together."""
    each: list[tuple[int, ...]] = [(place,) for place in range(count)]
    return [(), *each, *([tuple(range(count))] if count > 1 else [])]


def stack_scores(
    clips: Sequence[Clip],
    found: Sequence[Sequence[Hypothesis]],
    scores: Sequence[Sequence[Sequence[float]]],
    settings: SearchSettings,
) -> NBestScores:
    """Every list as rows of one table; where a list is shorter, the places are impossible."""
    shape = (len(clips), max(map(len, found)))
    acoustic, ngram, words = np.full(shape, -math.inf), np.zeros(shape), np.zeros(shape)
    rescored = np.zeros((len(scores[0]), *shape))
    errors = np.full(shape, np.iinfo(np.int64).max)
    for row, (clip, hypotheses) in enumerate(zip(clips, found, strict=True)):
        for place, hypothesis in enumerate(hypotheses):
            ngram[row, place] = hypothesis.language_score * math.log(10.0)
            words[row, place] = len(hypothesis.words)
            weighted = settings.lm_weight * ngram[row, place] + settings.word_bonus * words[row, place]
            acoustic[row, place] = hypothesis.score - weighted
            errors[row, place] = word_errors(clip.text, hypothesis.text).errors
        for number, values in enumerate(scores[row]):
            rescored[number, row, : len(hypotheses)] = values
    return NBestScores(acoustic, ngram, rescored, words, errors)


def choose_weights(
    lists: NBestScores, fold: NDArray[np.int64], names: Sequence[str], used: Sequence[int]
) -> SubsetResult:
    """Every weight with every other; of equals the gentlest."""
    grid = sorted(itertools.product(SEARCH_WEIGHTS, *[RESCORER_WEIGHTS] * len(used), WORD_BONUSES), key=sum)
    counted = np.array([np.bincount(fold, lists.chosen_errors(weights, used)) for weights in grid]).astype(
        int
    )
    all_errors = counted.sum(axis=1)
    fair = sum(int(here[(all_errors - here).argmin()]) for here in counted.T)
    best = int(all_errors.argmin())
    return SubsetResult(tuple(names[place] for place in used), fair, int(all_errors[best]), grid[best])


def recording_name(audio: str) -> str:
    """Clips of one recording share their name up to the last dash."""
    return Path(audio).stem.rpartition("-")[0]
