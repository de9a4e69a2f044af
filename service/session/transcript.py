"""Joins hypotheses to what was said before: the committed prefix only grows, finals never change.

Also measures how often shown words were taken back. Texts and times only; no decoder, no events' transport.
"""

from collections.abc import Sequence

from acoustic.constants import OUTPUT_SAMPLES, SAMPLE_RATE
from lm.hypothesis import Hypothesis
from service.session.events import Alternative, Word


class Transcript:
    """The words of one channel's open utterance, and how much of what was shown was taken back."""

    def __init__(self) -> None:
        self.revision_ratio = 0.0
        """Of the last final: how often words of its partials were taken back, by its words. May exceed 1."""
        self._revised_words = 0
        self.last_word_end_s: float | None = None
        self._shown: tuple[Word, ...] = ()
        self._stable = 0

    @property
    def shown(self) -> tuple[Word, ...]:
        """The words of the last partial."""
        return self._shown

    @property
    def stable(self) -> int:
        """How many of them can no longer change."""
        return self._stable

    def partial(
        self, hypothesis: Hypothesis, first_sample: int, end_sample: int
    ) -> tuple[tuple[Word, ...], int] | None:
        """Words and how many of them are stable; None when a listener would see nothing new."""
        words = self._with_committed_prefix(timed_words(hypothesis, first_sample, end_sample))
        stable = min(len(words), max(self._stable, hypothesis.stable_words))
        if (words, stable) == (self._shown, self._stable):
            return None
        self._count(words)
        self._shown, self._stable = words, stable
        self._record_end(words)
        return words, stable

    def final(
        self, hypotheses: Sequence[Hypothesis], first_sample: int, end_sample: int
    ) -> tuple[Alternative, ...]:
        """The readings, best first; the best one begins with everything that was committed."""
        alternatives = [
            Alternative(timed_words(each, first_sample, end_sample), each.score) for each in hypotheses
        ]
        if not alternatives:
            alternatives = [Alternative(())]
        best = self._with_committed_prefix(alternatives[0].words)
        alternatives[0] = Alternative(best, alternatives[0].score)
        self._count(best)
        self.revision_ratio = self._revised_words / max(1, len(best))
        self._revised_words = 0
        self._shown, self._stable = (), 0
        self._record_end(best)
        return tuple(alternatives)

    def _with_committed_prefix(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        """A decoder that takes back committed words (it should not) is overruled, never shown."""
        committed = self._shown[: self._stable]
        if [word.text for word in words[: len(committed)]] == [word.text for word in committed]:
            return words
        return committed + words[len(committed) :]

    def _count(self, words: tuple[Word, ...]) -> None:
        """A last word that only grows is still being heard: nothing was taken back."""
        kept = 0
        for before, now in zip(self._shown, words, strict=False):
            grew = kept == len(self._shown) - 1 and now.text.startswith(before.text)
            if before.text != now.text and not grew:
                break
            kept += 1
        self._revised_words += len(self._shown) - kept

    def _record_end(self, words: tuple[Word, ...]) -> None:
        if words:
            self.last_word_end_s = words[-1].end_s


def timed_words(hypothesis: Hypothesis, first_sample: int, end_sample: int) -> tuple[Word, ...]:
    """The hypothesis's words in stream time, none beyond the sound."""
    return tuple(
        Word(
            each.text,
            (first_sample + each.first_frame * OUTPUT_SAMPLES) / SAMPLE_RATE,
            min(end_sample, first_sample + each.end_frame * OUTPUT_SAMPLES) / SAMPLE_RATE,
            each.confidence,
        )
        for each in hypothesis.words
    )
