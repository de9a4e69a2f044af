"""The n-best list of a finished utterance, ranked again with more knowledge: a bigger n-gram, a Transformer-XL.

A rescorer gives each text a natural-log probability, the end of the sentence included, which is added to what the
search found, each with its weight. What was said before may be carried on as the Transformer-XL's memory.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lm.decoders import Decoder
from lm.errors import LanguageError
from lm.hypothesis import Hypothesis
from lm.search_settings import SearchSettings

if TYPE_CHECKING:
    from lm.transformer_xl.model import Memory

LONGEST_CONTEXT_WORDS = 256
SENTENCES_BEFORE = 4
LONGEST_LIST = 200
SLICE_READINGS = 2


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
    """How much each source counts in the end; the first two stand in place of the search's own."""

    lm_weight: float
    word_bonus: float
    weights: tuple[float, ...]
    longest_list: int = 16
    """Readings that are ranked again. Each costs a rescorer's time."""

    def __post_init__(self) -> None:
        numbers = (self.lm_weight, self.word_bonus, *self.weights)
        if not all(math.isfinite(number) for number in numbers):
            raise LanguageError(f"rescoring weights must be finite numbers, not {numbers}")
        if not 1 <= self.longest_list <= LONGEST_LIST:
            raise LanguageError(f"a list of {self.longest_list} readings: expected 1 to {LONGEST_LIST}")


def rescore(
    n_best: Sequence[Hypothesis],
    rescorers: Sequence[Rescorer],
    settings: RescoreSettings,
    search: SearchSettings,
    before: Sequence[str] = (),
) -> tuple[Hypothesis, ...]:
    """The list in its new order, each hypothesis with its new score; `search` is what the list was made with."""
    *_, ranked = in_slices(n_best, rescorers, settings, search, before)
    assert ranked is not None
    return ranked


def in_slices(
    n_best: Sequence[Hypothesis],
    rescorers: Sequence[Rescorer],
    settings: RescoreSettings,
    search: SearchSettings,
    before: Sequence[str] = (),
) -> Iterator[tuple[Hypothesis, ...] | None]:
    """The same a few milliseconds at a time, for a process with other work: None after each slice, the list at last."""
    if len(rescorers) != len(settings.weights):
        raise LanguageError(f"{len(rescorers)} rescorers but {len(settings.weights)} weights: one each")
    totals = [
        hypothesis.score
        + (settings.lm_weight - search.lm_weight) * hypothesis.language_score * math.log(10.0)
        + (settings.word_bonus - search.word_bonus) * len(hypothesis.words)
        for hypothesis in n_best
    ]
    for rescorer, weight in zip(rescorers, settings.weights, strict=True):
        for first in range(0, len(n_best), SLICE_READINGS):
            texts = [hypothesis.text for hypothesis in n_best[first : first + SLICE_READINGS]]
            for place, score in enumerate(rescorer.log_probs(texts, before), start=first):
                totals[place] += weight * score
            yield None
    order = sorted(range(len(n_best)), key=lambda place: (-totals[place], place))
    yield tuple(replace(n_best[place], score=totals[place]) for place in order)


@dataclass(frozen=True)
class Rescoring:
    """Models and what each counts, as `silica lm rescore --out` writes them into one file."""

    rescorers: tuple[Rescorer, ...]
    settings: RescoreSettings
    search_model: str = "shipped"
    """The n-gram of the search: a file, or `shipped`."""

    @classmethod
    def load(cls, path: Path) -> "Rescoring":
        """Read the file and the models it names (beside it, unless their paths are absolute)."""
        try:
            kept: dict[str, Any] = json.loads(path.read_text())
            models = [(path.parent / str(model["file"]), float(model["weight"])) for model in kept["models"]]
            search = str(kept["search_model"])
            settings = RescoreSettings(
                float(kept["lm_weight"]),
                float(kept["word_bonus"]),
                tuple(weight for _, weight in models),
                int(kept["longest_list"]),
            )
        except OSError:
            raise LanguageError(
                f"there is no rescoring {path}; `silica lm rescore --out` writes one"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise LanguageError(
                f"{path} is no rescoring that `silica lm rescore --out` wrote ({error!r})"
            ) from None
        rescorers = tuple(open_rescorer(model) for model, _ in models)
        return cls(rescorers, settings, search if search == "shipped" else str(path.parent / search))

    def save(self, path: Path, models: Sequence[Path]) -> None:
        """Write the weights, and where the models lie as seen from the file."""

        def seen(model: Path | str) -> str:
            return os.path.relpath(model, path.parent)

        named = [
            {"file": seen(model), "weight": weight}
            for model, weight in zip(models, self.settings.weights, strict=True)
        ]
        kept = {
            "search_model": self.search_model if self.search_model == "shipped" else seen(self.search_model),
            "lm_weight": self.settings.lm_weight,
            "word_bonus": self.settings.word_bonus,
            "longest_list": self.settings.longest_list,
            "models": named,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1) + "\n")


def open_rescorer(model: Path) -> Rescorer:
    """A Transformer-XL (.safetensors) or a KenLM file."""
    return TransformerRescorer(model) if model.suffix == ".safetensors" else NGramRescorer(model)


class RescoringDecoder:
    """A search whose finished utterances are ranked again; while they go on, nothing is different."""

    def __init__(self, decoder: Decoder, rescoring: Rescoring) -> None:
        self._decoder, self._rescoring = decoder, rescoring

    def start(self, settings: SearchSettings = SearchSettings()) -> "RescoredUtterance":
        return RescoredUtterance(self._decoder, self._rescoring, settings)


class RescoredUtterance:
    def __init__(self, decoder: Decoder, rescoring: Rescoring, settings: SearchSettings) -> None:
        self._rescoring, self._settings = rescoring, settings
        longest = max(settings.n_best, min(rescoring.settings.longest_list, settings.width))
        self._searched = decoder.start(replace(settings, n_best=longest))

    def push(self, log_probs: NDArray[np.float32]) -> None:
        self._searched.push(log_probs)

    def best(self) -> Hypothesis:
        return self._searched.best()

    def finish(self) -> tuple[Hypothesis, ...]:
        *_, ranked = self.finish_in_slices()
        assert ranked is not None
        return ranked

    def finish_in_slices(self) -> Iterator[tuple[Hypothesis, ...] | None]:
        """As finish(), a few milliseconds at a time: None after each slice of work, the readings at last."""
        found = self._searched.finish()
        if len(found) > 1:
            rescoring = self._rescoring
            for ranked in in_slices(found, rescoring.rescorers, rescoring.settings, self._settings):
                if ranked is not None:
                    found = ranked
                yield None
        yield found[: self._settings.n_best]
