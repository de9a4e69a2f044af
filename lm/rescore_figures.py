"""What rescoring is worth on a manifest: word errors greedy, by the search, and with rescorers, weights chosen fairly.

The clips are halved by recording; the weights chosen on one half are counted on the other, both ways.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.decoders import open_decoder
from lm.hypothesis import Hypothesis
from lm.ngram import NGram
from lm.rescore import Rescorer
from lm.score import ErrorCounts, word_errors
from lm.search_settings import SearchSettings
from lm.tuning import ALPHABET, Clip

Weights = tuple[float, float, float]
NGRAM_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
RESCORER_WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
WORD_BONUSES = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
SENTENCES_BEFORE = 4


@dataclass(frozen=True)
class _Candidate:
    acoustic: float
    ngram: float
    rescored: float
    words: int
    errors: int


@dataclass(frozen=True)
class RescoreFigures:
    """Word error rates; `fair` ones have their weights from the other half of the clips."""

    greedy: float
    search: float
    search_tuned_fair: float
    rescored_fair: float
    rescored_best: float
    best_weights: Weights
    oracle: float


def figures(
    clips: Sequence[Clip],
    recordings: Sequence[str],
    ngram: NGram,
    rescorer: Rescorer,
    settings: SearchSettings,
    longest_list: int,
    progress: Callable[[str], None],
    carry: bool = True,
) -> RescoreFigures:
    """Search, rescore and count; `recordings` tells which clips follow each other, for what was said before."""
    greedy, beam = open_decoder("greedy", ALPHABET), open_decoder("beam", ALPHABET, ngram)
    greedy_errors = search_errors = ErrorCounts()
    lists: list[tuple[_Candidate, ...]] = []
    before: list[str] = []
    for place, clip in enumerate(clips):
        if place and recordings[place] != recordings[place - 1]:
            before = []
        plain = greedy.start()
        plain.push(clip.log_probs)
        greedy_errors += word_errors(clip.text, plain.finish()[0].text)
        utterance = beam.start(settings)
        utterance.push(clip.log_probs)
        found = utterance.finish()[:longest_list]
        search_errors += word_errors(clip.text, found[0].text)
        scores = rescorer.log_probs([h.text for h in found], before[-SENTENCES_BEFORE:] if carry else ())
        lists.append(
            tuple(_candidate(clip, h, score, settings) for h, score in zip(found, scores, strict=True))
        )
        before.append(found[0].text)
        if place % 100 == 99:
            progress(f"{place + 1} of {len(clips)} clips")
    half = {recording: number % 2 for number, recording in enumerate(sorted(set(recordings)))}
    halves = [half[recording] for recording in recordings]
    words = max(sum(len(clip.text.split()) for clip in clips), 1)
    search_grid = [(weight, 0.0, bonus) for weight in NGRAM_WEIGHTS for bonus in WORD_BONUSES]
    grid = list(itertools.product(NGRAM_WEIGHTS, RESCORER_WEIGHTS, WORD_BONUSES))
    best = min(grid, key=lambda weights: sum(_errors(lists, halves, weights)))
    return RescoreFigures(
        greedy=greedy_errors.rate,
        search=search_errors.rate,
        search_tuned_fair=_fair(lists, halves, search_grid) / words,
        rescored_fair=_fair(lists, halves, grid) / words,
        rescored_best=sum(_errors(lists, halves, best)) / words,
        best_weights=best,
        oracle=sum(min(candidate.errors for candidate in found) for found in lists) / words,
    )


def _candidate(clip: Clip, hypothesis: Hypothesis, score: float, settings: SearchSettings) -> _Candidate:
    language = hypothesis.language_score * math.log(10.0)
    words = len(hypothesis.words)
    acoustic = hypothesis.score - settings.lm_weight * language - settings.word_bonus * words
    return _Candidate(acoustic, language, score, words, word_errors(clip.text, hypothesis.text).errors)


def _errors(
    lists: Sequence[Sequence[_Candidate]], halves: Sequence[int], weights: Weights
) -> tuple[int, int]:
    """Errors of the two halves under these weights of n-gram, rescorer and words."""
    ngram, rescorer, bonus = weights
    errors = [0, 0]
    for half, found in zip(halves, lists, strict=True):
        best = max(
            found, key=lambda c: c.acoustic + ngram * c.ngram + rescorer * c.rescored + bonus * c.words
        )
        errors[half] += best.errors
    return errors[0], errors[1]


def _fair(lists: Sequence[Sequence[_Candidate]], halves: Sequence[int], grid: Sequence[Weights]) -> int:
    """Errors of each half under the weights that are best for the other."""
    counted = {weights: _errors(lists, halves, weights) for weights in grid}
    return sum(counted[min(grid, key=lambda w, h=half: counted[w][h])][1 - half] for half in (0, 1))  # type: ignore[misc]


def recording_of(audio: str) -> str:
    """Clips of one recording share their name up to the last dash."""
    return Path(audio).stem.rpartition("-")[0]
