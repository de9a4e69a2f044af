"""A whole recording to words in this very process: a backend, a decoder, and cuts in long recordings.

For `silica transcribe` and `silica evaluate`. Live sound and many streams at once are `service.streams`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from acoustic.constants import OUTPUT_S
from acoustic.windows import LogProbs
from lm.decoders import Decoder, Utterance
from lm.hypothesis import Hypothesis
from lm.search_settings import SearchSettings

QUIET_MASS = 0.95
"""A frame with this much on blank and space says no letter."""


@dataclass(frozen=True)
class TimedWord:
    """A word with its place in the recording."""

    text: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class CutRules:
    """When an utterance of a long recording may end: the longer it is, the shorter a pause will do. Of a short one the
    readings that are ranked differ in more of its words than of a long one."""

    long_s: float = 5.0
    pause_s: float = 0.6
    longest_s: float = 60.0


NEVER = CutRules(long_s=float("inf"), longest_s=float("inf"))


def words_of(
    pieces: Iterable[LogProbs],
    decoder: Decoder,
    settings: SearchSettings,
    alphabet: str,
    rules: CutRules = CutRules(),
) -> Iterator[TimedWord]:
    """The words of a recording, given out as its utterances end."""
    for utterance in utterances_of(pieces, decoder, settings, alphabet, rules):
        yield from utterance


def utterances_of(
    pieces: Iterable[LogProbs],
    decoder: Decoder,
    settings: SearchSettings,
    alphabet: str,
    rules: CutRules = CutRules(),
    reading: Callable[[Hypothesis], None] | None = None,
) -> Iterator[tuple[TimedWord, ...]]:
    """The words of each utterance as it ends; `reading` is told the best reading of the open one meanwhile."""
    cutter = _Cutter(alphabet, rules)
    utterance: Utterance | None = None
    begun = heard = 0
    for log_probs in pieces:
        for part, ends in cutter.parts(log_probs):
            if utterance is None:
                utterance, begun = decoder.start(settings), heard
            utterance.push(part)
            heard += len(part)
            if ends:
                yield _timed(utterance.finish()[0], begun)
                utterance = None
            elif reading is not None:
                reading(utterance.best())
    if utterance is not None:
        yield _timed(utterance.finish()[0], begun)


def _timed(hypothesis: Hypothesis, begun: int) -> tuple[TimedWord, ...]:
    return tuple(
        TimedWord(
            word.text,
            round((begun + word.first_frame) * OUTPUT_S, 3),
            round((begun + word.end_frame) * OUTPUT_S, 3),
            word.confidence,
        )
        for word in hypothesis.words
    )


class _Cutter:
    """Splits outputs where an utterance may end; how they came in pieces changes no cut."""

    def __init__(self, alphabet: str, rules: CutRules) -> None:
        self._silent = [len(alphabet), *(index for index, letter in enumerate(alphabet) if letter == " ")]
        self._rules = rules
        self._length = self._quiet = 0

    def parts(self, log_probs: LogProbs) -> Iterator[tuple[LogProbs, bool]]:
        """Stretches of one utterance each, and whether the utterance ends with it."""
        quiet = np.exp(log_probs[:, self._silent]).sum(axis=1) > QUIET_MASS
        first = 0
        for row, silent in enumerate(quiet.tolist()):
            self._length += 1
            self._quiet = self._quiet + 1 if silent else 0
            if self._may_end():
                yield log_probs[first : row + 1], True
                first, self._length, self._quiet = row + 1, 0, 0
        if first < len(log_probs):
            yield log_probs[first:], False

    def _may_end(self) -> bool:
        seconds, pause_s = self._length * OUTPUT_S, self._quiet * OUTPUT_S
        if seconds <= self._rules.long_s:
            return False
        # From a long pause to any silent frame at all, and at last in the middle of a word.
        share = min(1.0, (seconds - self._rules.long_s) / (self._rules.longest_s - self._rules.long_s))
        return pause_s >= self._rules.pause_s * (1.0 - share) and (self._quiet > 0 or share == 1.0)
