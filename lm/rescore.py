"""The n-best list of a finished utterance, ranked again with more knowledge: a bigger n-gram, a Transformer-XL.

A rescorer gives each text a natural-log probability, word ends included. The search's own score stays in the sum, so
a list without a rescorer keeps its order. What was said before may be carried on as the Transformer-XL's memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lm.errors import LanguageError
from lm.hypothesis import Hypothesis

if TYPE_CHECKING:
    from lm.transformer_xl.model import Memory

LONGEST_CONTEXT_WORDS = 256


class Rescorer(Protocol):
    """Knows how probable a text is, after what was said before."""

    def log_probs(self, texts: Sequence[str], before: Sequence[str] = ()) -> list[float]:
        """Natural-log probability of each text as the sentence after the sentences `before`."""


class NGramRescorer:
    """A KenLM file of any kind, usually a bigger one than the search can hold; sentences stand alone."""

    def __init__(self, model: Path, unknown_penalty: float = 10.0) -> None:
        from lm.building import open_kenlm

        self._model: Any = open_kenlm(model)
        self._unknown_penalty = unknown_penalty

    def log_probs(self, texts: Sequence[str], before: Sequence[str] = ()) -> list[float]:
        """Scores of the sentences by themselves; an unknown word costs the penalty besides."""
        found = []
        for text in texts:
            unknown = sum(word not in self._model for word in text.split())
            found.append(float(self._model.score(text)) * math.log(10.0) - unknown * self._unknown_penalty)
        return found


class TransformerRescorer:
    """A Transformer-XL: the whole list in one batch, after a memory of the sentences before."""

    def __init__(self, weights: Path) -> None:
        from lm.transformer_xl.storage import load

        self._network, self._vocabulary = load(weights)

    def log_probs(self, texts: Sequence[str], before: Sequence[str] = ()) -> list[float]:
        """Scores of the texts, each read after the same memory; an unknown word costs its share of <unk>."""
        import torch

        if not texts:
            return []
        words = self._vocabulary
        lines = [[words.end, *words.encode(text), words.end] for text in texts]
        longest = max(map(len, lines))
        padded = torch.tensor([line + [words.end] * (longest - len(line)) for line in lines])
        share = math.log(words.unknown_kinds)
        with torch.inference_mode():
            memory = tuple(layer.expand(len(texts), -1, -1) for layer in self._memory(before))
            found, _ = self._network.log_probs(padded[:, :-1], padded[:, 1:], memory)
        scores = []
        for row, line in enumerate(lines):
            unknown = line.count(words.unknown)
            scores.append(float(found[row, : len(line) - 1].sum()) - unknown * share)
        return scores

    def _memory(self, before: Sequence[str]) -> "Memory":
        """What the network remembers after the sentences before, the latest ones that fit."""
        import torch

        numbers = [
            number for text in before for number in (self._vocabulary.end, *self._vocabulary.encode(text))
        ]
        numbers = numbers[-LONGEST_CONTEXT_WORDS:]
        memory = self._network.empty_memory(1)
        segment = self._network.config.segment
        for start in range(0, len(numbers), segment):
            _, memory = self._network(torch.tensor([numbers[start : start + segment]]), memory)
        return memory


@dataclass(frozen=True)
class RescoreSettings:
    """How much each source counts beside the search's own score, and a bonus a word."""

    weights: tuple[float, ...]
    word_bonus: float = 0.0
    # How much of the search's language model stays: 1 keeps it all, 0 puts the rescorers in its place.
    keep_search_lm: float = 1.0

    def __post_init__(self) -> None:
        numbers = (*self.weights, self.word_bonus, self.keep_search_lm)
        if not all(math.isfinite(number) for number in numbers):
            raise LanguageError(f"rescoring weights must be finite numbers, not {numbers}")


def rescore(
    n_best: Sequence[Hypothesis],
    rescorers: Sequence[Rescorer],
    settings: RescoreSettings,
    lm_weight: float,
    before: Sequence[str] = (),
) -> tuple[Hypothesis, ...]:
    """The list in its new order, each hypothesis with its new score; `lm_weight` is the one of the search."""
    if len(rescorers) != len(settings.weights):
        raise LanguageError(f"{len(rescorers)} rescorers but {len(settings.weights)} weights: one each")
    texts = [hypothesis.text for hypothesis in n_best]
    totals = [
        hypothesis.score
        - (1.0 - settings.keep_search_lm) * lm_weight * hypothesis.language_score * math.log(10.0)
        + settings.word_bonus * len(hypothesis.words)
        for hypothesis in n_best
    ]
    for rescorer, weight in zip(rescorers, settings.weights, strict=True):
        for place, score in enumerate(rescorer.log_probs(texts, before)):
            totals[place] += weight * score
    order = sorted(range(len(n_best)), key=lambda place: (-totals[place], place))
    return tuple(replace(n_best[place], score=totals[place]) for place in order)
