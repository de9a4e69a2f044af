"""Words wrong, as they are counted: beside whatever else a run minimizes, the mistakes to be expected of its readings.

The search lists the readings of every row, each as probable as its score says; a reading with fewer mistakes than the
list has on average becomes likelier, one with more less likely (minimum word error rate training, Prabhavalkar et al.
2018, arXiv 1712.01818). What a language model mends by itself the network need not learn then, and what it cannot mend
counts for more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from lm.decoders import Decoder, SearchSettings, open_decoder
from lm.ngram.trie import NGram
from lm.score import word_errors
from training.data.loader import Batch, batch_seed
from training.objectives.ctc import ctc
from training.objectives.objective import Loss, Objective, PreparedBatch, spoken_targets
from training.recipe import MwerConfig

MIN_SHARE = 1e-3
"""A reading that would move the network by less than so many mistakes is passed over: its gradient costs as much."""


class MwerObjective:
    """An objective, and the expected mistakes of each row besides."""

    def __init__(
        self,
        objective: Objective,
        model: nn.Module,
        alphabet: str,
        part: MwerConfig,
        search: SearchSettings,
        ngram: NGram | None,
    ) -> None:
        self.objective = objective
        self.alphabet = alphabet
        self.part = part
        self.decoder: Decoder = open_decoder("beam", alphabet, ngram)
        self.searches = [
            replace(
                search,
                n_best=part.hypotheses,
                width=part.beam_width,
                lm_weight=weight if ngram else 0.0,
                # Where nothing is known of words, none is unknown.
                unknown_penalty=search.unknown_penalty if weight and ngram else 0.0,
            )
            for weight in part.lm_weights
        ]
        self._made: tuple[Tensor, Tensor] | None = None
        model.register_forward_hook(self._keep)

    def hear(self, batch: Batch) -> PreparedBatch:
        """As the objective does."""
        return self.objective.hear(batch)

    def __call__(self, model: nn.Module, heard: PreparedBatch) -> Loss:
        loss = self.objective(model, heard)
        assert self._made is not None
        (log_probs, outputs), self._made = self._made, None
        targets, lengths = spoken_targets(heard.batch, heard.altered.silent)
        said = {
            row: self._text(labels)
            for row, labels in enumerate(torch.split(targets, lengths.tolist()))
            if row in heard.altered.silent or len(labels)
        }
        draw = np.random.default_rng(batch_seed(heard.batch.seed, 0, 2))
        total, figures = self.expected(log_probs.float(), outputs, said, draw)
        return Loss(loss.total + self.part.weight * total, loss.rows, {**loss.figures, **figures})

    def expected(
        self,
        log_probs: Tensor,
        outputs: Tensor,
        said: Mapping[int, str],
        draw: np.random.Generator,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """What has the gradient of the expected mistakes of the rows of which it is known what is said; and those
        mistakes, the best readings' and the words.

        Each row is searched with one of the language model's weights: with none of it, too, for texts that it has read
        leave few mistakes to learn from.
        """
        plain = log_probs.detach().cpu().numpy()
        rows: list[int] = []
        readings: list[list[int]] = []
        shares: list[float] = []
        mistakes = best = words = 0.0
        for row, text in said.items():
            search = self.searches[int(draw.integers(len(self.searches)))]
            utterance = self.decoder.start(search)
            utterance.push(plain[row, : int(outputs[row])])
            found = utterance.finish()
            wrong = np.array([float(word_errors(text, reading.text).errors) for reading in found])
            likely = (
                torch.tensor([reading.score for reading in found], dtype=torch.float64).softmax(0).numpy()
            )
            mean = float(likely @ wrong)
            for reading, share in zip(found, likely * (wrong - mean), strict=True):
                if abs(share) > MIN_SHARE:
                    rows.append(row)
                    shares.append(share)
                    readings.append([self.alphabet.index(letter) for letter in reading.text])
            mistakes, best, words = mistakes + mean, best + wrong[0], words + len(text.split())
        counted = log_probs.new_tensor((mistakes, best, words))
        figures = dict(zip(("mistakes", "mistakes_of_the_best", "words_said"), counted, strict=True))
        if not rows:
            return log_probs.new_zeros(()), figures
        blank = len(self.alphabet)
        # As the search counts: a frame in which nothing is written costs.
        leaning = one_hot(torch.tensor(blank), log_probs.shape[-1]) * self.searches[0].blank_penalty
        leant = log_probs - leaning.to(log_probs.device)
        losses = ctc(leant[rows], outputs[rows], *_joined(readings, log_probs.device), blank)
        # A reading's score falls as its loss grows.
        return -(log_probs.new_tensor(shares) * losses).sum(), figures

    def _text(self, labels: Tensor) -> str:
        return "".join(self.alphabet[label] for label in labels.tolist())

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...], made: tuple[Tensor, Tensor]) -> None:
        self._made = made


def _joined(readings: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Labels one after another, and how many each reading has."""
    labels = [label for reading in readings for label in reading]
    lengths = [len(reading) for reading in readings]
    return torch.tensor(labels, dtype=torch.long, device=device), torch.tensor(lengths, device=device)
