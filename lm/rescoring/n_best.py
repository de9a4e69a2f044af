"""The n-best list of a finished utterance, ranked again with more knowledge: a bigger n-gram, a Transformer-XL.

A rescorer gives each text a natural-log probability, the end of the sentence included, which is added to what the
search found, each with its weight. What was said before may be carried on as the Transformer-XL's memory.
"""

import json
import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from acoustic.files import write_file
from lm import PRETRAINED
from lm.decoders import Decoder
from lm.errors import LanguageError
from lm.hypothesis import Hypothesis
from lm.search.settings import SearchSettings

CONTEXT_SENTENCES = 4
MAX_N_BEST = 200


class Rescorer(Protocol):
    """A language model that scores whole sentences."""

    def slices(
        self, texts: Sequence[str], context: Sequence[str] = (), exempt_words: Collection[str] = ()
    ) -> Iterator[list[float] | None]:
        """Natural-log probability of each text as the sentence after the sentences `context`. Yields None after each
        slice of work, some fifteen milliseconds, and the scores at the end. Unknown words cost nothing if they are in
        `exempt_words`."""


def log_probs(rescorer: Rescorer, texts: Sequence[str], context: Sequence[str] = ()) -> list[float]:
    """A rescorer's scores of the texts, all at once."""
    *_, found = rescorer.slices(texts, context)
    assert found is not None
    return found


class NGramRescorer:
    """A KenLM file of any kind, usually a bigger one than the search can hold; sentences stand alone."""

    def __init__(self, model: Path, unknown_penalty: float = 10.0) -> None:
        from lm.ngram.build import open_kenlm

        self._model: Any = open_kenlm(model)
        self._unknown_penalty = unknown_penalty

    def slices(
        self, texts: Sequence[str], context: Sequence[str] = (), exempt_words: Collection[str] = ()
    ) -> Iterator[list[float] | None]:
        """Scores of the sentences by themselves; an unknown word costs the penalty besides."""
        found = []
        for text in texts:
            unknown = sum(word not in self._model and word not in exempt_words for word in text.split())
            found.append(float(self._model.score(text)) * math.log(10.0) - unknown * self._unknown_penalty)
            yield None
        yield found


@dataclass(frozen=True)
class RescoreSettings:
    """How much each source counts in the end; the first two stand in place of the search's own."""

    lm_weight: float
    word_bonus: float
    weights: tuple[float, ...]
    max_hypotheses: int = 24
    """Readings that are ranked again, at the most. Each costs a rescorer's time."""
    spread: float = 4.5
    """So many nats behind the search's best a reading is given up: hardly ever does one win from there."""
    search_weights: tuple[float, float] | None = None
    """The search's own two when these were chosen. A search that trusts the language less than that one did, because
    its network is surer, trusts all of this less in proportion. None: these count as they are, whatever the search."""

    def __post_init__(self) -> None:
        numbers = (self.lm_weight, self.word_bonus, *self.weights, *(self.search_weights or ()))
        if not all(math.isfinite(number) for number in numbers):
            raise LanguageError(f"rescoring weights must be finite numbers, not {numbers}")
        if not 1 <= self.max_hypotheses <= MAX_N_BEST:
            raise LanguageError(f"a list of {self.max_hypotheses} readings: expected 1 to {MAX_N_BEST}")
        if not self.spread > 0:
            raise LanguageError(
                f"a spread of {self.spread} nats leaves nothing to rank: expected more than 0"
            )
        if self.search_weights and self.search_weights[0] <= 0:
            raise LanguageError(
                "rescoring weights are in proportion to a search that trusts a language model"
            )

    def scaled_for(self, search: SearchSettings) -> tuple[float, float, tuple[float, ...]]:
        """What is added to a search's own weight and bonus, and the rescorers' weights, for a list of `search`."""
        if self.search_weights is None:
            return self.lm_weight - search.lm_weight, self.word_bonus - search.word_bonus, self.weights
        trust = search.lm_weight / self.search_weights[0]
        more = (self.lm_weight - self.search_weights[0], self.word_bonus - self.search_weights[1])
        return trust * more[0], trust * more[1], tuple(trust * weight for weight in self.weights)


def within_spread(n_best: Sequence[Hypothesis], spread: float, wanted: int = 1) -> tuple[Hypothesis, ...]:
    """The hypotheses that the caller asks for, and those close enough to the best one to be put before it."""
    return tuple(
        one for place, one in enumerate(n_best) if place < wanted or one.score >= n_best[0].score - spread
    )


def rescore_in_slices(
    n_best: Sequence[Hypothesis],
    rescorers: Sequence[Rescorer],
    settings: RescoreSettings,
    search: SearchSettings,
) -> Iterator[tuple[Hypothesis, ...] | None]:
    """The list in its new order, each hypothesis with its new score; `search` is what the list was made with. A few
    milliseconds at a time, for a process with other work: None after each slice, the list at last."""
    if len(rescorers) != len(settings.weights):
        raise LanguageError(f"{len(rescorers)} rescorers but {len(settings.weights)} weights: one each")
    more_lm, more_bonus, weights = settings.scaled_for(search)
    totals = [
        hypothesis.score
        + more_lm * hypothesis.language_score * math.log(10.0)
        + more_bonus * len(hypothesis.words)
        for hypothesis in n_best
    ]
    texts = [hypothesis.text for hypothesis in n_best]
    exempt_words = {word for hotword in search.hotwords for word in hotword.phrase.lower().split()}
    for rescorer, weight in zip(rescorers, weights, strict=True):
        if not weight:
            continue
        for scores in rescorer.slices(texts, exempt_words=exempt_words):
            if scores is not None:
                totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
            yield None
    # What is far behind may be told, but is not put first: else more readings asked for would change the first.
    far = [hypothesis.score < n_best[0].score - settings.spread for hypothesis in n_best]
    order = sorted(range(len(n_best)), key=lambda place: (far[place], -totals[place], place))
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
            search_weights = kept.get("search_weights")
            settings = RescoreSettings(
                float(kept["lm_weight"]),
                float(kept["word_bonus"]),
                tuple(weight for _, weight in models),
                int(kept["max_hypotheses"]),
                float(kept.get("spread", RescoreSettings.spread)),
                (float(search_weights[0]), float(search_weights[1])) if search_weights else None,
            )
        except OSError:
            raise LanguageError(
                f"there is no rescoring {path}; `silica lm rescore --out` writes one"
            ) from None
        except LanguageError as error:
            raise LanguageError(f"{path}: {error}") from None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise LanguageError(
                f"{path} is no rescoring that `silica lm rescore --out` wrote ({error!r})"
            ) from None
        rescorers = tuple(open_rescorer(model) for model, _ in models)
        return cls(rescorers, settings, search if search == "shipped" else str(path.parent / search))

    @classmethod
    def shipped(cls) -> "Rescoring | None":
        """The shipped rescoring, or None if there is none."""
        path = PRETRAINED / "rescoring.json"
        return cls.load(path) if path.is_file() else None

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
            "max_hypotheses": self.settings.max_hypotheses,
            "spread": self.settings.spread,
            "search_weights": self.settings.search_weights,
            "models": named,
        }
        write_file(path, json.dumps(kept, indent=1) + "\n")


def open_rescorer(model: Path) -> Rescorer:
    """A Transformer-XL (.safetensors) or a KenLM file."""
    if model.suffix == ".safetensors":
        from lm.rescoring.transformer_xl.inference import NumpyRescorer

        return NumpyRescorer.load(model)
    return NGramRescorer(model)


class RescoringDecoder:
    """A search whose finished utterances are ranked again; while they go on, nothing is different."""

    def __init__(self, decoder: Decoder, rescoring: Rescoring) -> None:
        self._decoder, self._rescoring = decoder, rescoring

    def start(self, settings: SearchSettings = SearchSettings()) -> "RescoredUtterance":
        return RescoredUtterance(self._decoder, self._rescoring, settings)


class RescoredUtterance:
    def __init__(self, decoder: Decoder, rescoring: Rescoring, settings: SearchSettings) -> None:
        self._rescoring, self._settings = rescoring, settings
        longest = max(settings.n_best, min(rescoring.settings.max_hypotheses, settings.width))
        self._search = decoder.start(replace(settings, n_best=longest))

    def push(self, log_probs: NDArray[np.float32]) -> None:
        self._search.push(log_probs)

    def best(self) -> Hypothesis:
        return self._search.best()

    def finish(self) -> tuple[Hypothesis, ...]:
        *_, ranked = self.finish_in_slices()
        assert ranked is not None
        return ranked

    def finish_in_slices(self) -> Iterator[tuple[Hypothesis, ...] | None]:
        """As finish(), a few milliseconds at a time: None after each slice of work, the readings at last."""
        found, rescoring = self._search.finish(), self._rescoring
        wanted = self._settings.n_best
        found = within_spread(found, rescoring.settings.spread, wanted)
        if len(found) > 1:
            for ranked in rescore_in_slices(found, rescoring.rescorers, rescoring.settings, self._settings):
                if ranked is not None:
                    found = ranked
                yield None
        yield found[:wanted]
