"""Minimum word error rate training (Prabhavalkar et al. 2018, arXiv 1712.01818), beside another objective.

The beam search lists the n-best hypotheses of every row, each with a probability from its score. A hypothesis with
fewer word errors than the list's mean becomes likelier, one with more less likely. The network then need not learn
what the language model corrects by itself, and what it cannot correct counts for more.
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
from training.objectives.objective import ForwardPass, Graphed, Loss, Objective, PreparedBatch
from training.recipe import MwerConfig

MIN_ERROR_SHARE = 1e-3
"""A hypothesis whose probability times its excess of errors is below this is left out: its gradient costs as much as
that of any other."""


class MwerObjective:
    """An objective, plus the expected word errors of each row."""

    def __init__(
        self,
        objective: Objective,
        alphabet: str,
        config: MwerConfig,
        search: SearchSettings,
        ngram: NGram | None,
    ) -> None:
        self.objective = objective
        self.alphabet = alphabet
        self.config = config
        self.decoder: Decoder = open_decoder("beam", alphabet, ngram)
        self.searches = [
            replace(
                search,
                n_best=config.hypotheses,
                width=config.beam_width,
                lm_weight=weight if ngram else 0.0,
                # Without a language model no word is unknown.
                unknown_penalty=search.unknown_penalty if weight and ngram else 0.0,
            )
            for weight in config.lm_weights
        ]

    @property
    def graphed(self) -> Sequence[Graphed]:
        """Those of the other objective."""
        return self.objective.graphed

    def prepare(self, batch: Batch) -> PreparedBatch:
        """As the other objective does."""
        return self.objective.prepare(batch)

    def forward(self, model: nn.Module, prepared: PreparedBatch) -> ForwardPass:
        """As the other objective does."""
        return self.objective.forward(model, prepared)

    def transcript_loss(self, prepared: PreparedBatch, log_probs: Tensor) -> Loss:
        """That of the other objective plus the weighted expected word errors."""
        loss = self.objective.transcript_loss(prepared, log_probs)
        labels = torch.split(prepared.targets, prepared.target_lengths.tolist())
        transcripts = {
            row: self._text(own) for row, own in enumerate(labels) if row in prepared.silent or len(own)
        }
        random = np.random.default_rng(batch_seed(prepared.batch.seed, 0, 2))
        errors, metrics = self.expected_errors(log_probs.float(), prepared.output_counts, transcripts, random)
        return Loss(loss.total + self.config.weight * errors, {**loss.metrics, **metrics})

    def expected_errors(
        self,
        log_probs: Tensor,
        outputs: Tensor,
        transcripts: Mapping[int, str],
        random: np.random.Generator,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A value with the gradient of the expected word errors of the rows with a known transcript; and as metrics the
        expected errors, the errors of the best hypotheses, and the words.

        Each row is searched with one of the configured weights of the language model, also without it: texts that the
        language model was built from leave few errors to learn from.
        """
        values = log_probs.detach().cpu().numpy()
        rows: list[int] = []
        hypotheses: list[list[int]] = []
        shares: list[float] = []
        expected = best = words = 0.0
        for row, text in transcripts.items():
            search = self.searches[int(random.integers(len(self.searches)))]
            utterance = self.decoder.start(search)
            utterance.push(values[row, : int(outputs[row])])
            found = utterance.finish()
            errors = np.array([float(word_errors(text, hypothesis.text).errors) for hypothesis in found])
            scores = torch.tensor([hypothesis.score for hypothesis in found], dtype=torch.float64)
            probabilities = scores.softmax(0).numpy()
            mean = float(probabilities @ errors)
            for hypothesis, share in zip(found, probabilities * (errors - mean), strict=True):
                if abs(share) > MIN_ERROR_SHARE:
                    rows.append(row)
                    shares.append(share)
                    hypotheses.append([self.alphabet.index(character) for character in hypothesis.text])
            expected, best, words = expected + mean, best + errors[0], words + len(text.split())
        counts = log_probs.new_tensor((expected, best, words))
        metrics = dict(zip(("expected_errors", "best_errors", "words"), counts, strict=True))
        if not rows:
            return log_probs.sum() * 0.0, metrics
        blank = len(self.alphabet)
        # The search subtracts a penalty from the score of every blank.
        penalty = one_hot(torch.tensor(blank), log_probs.shape[-1]) * self.searches[0].blank_penalty
        penalized = log_probs - penalty.to(log_probs.device)
        losses = ctc(penalized[rows], outputs[rows], *_joined(hypotheses, log_probs.device), blank)
        # CTC is minus the logarithm of the hypothesis' probability.
        return -(log_probs.new_tensor(shares) * losses).sum(), metrics

    def _text(self, labels: Tensor) -> str:
        return "".join(self.alphabet[label] for label in labels.tolist())


def _joined(hypotheses: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The labels one after another, and the length of each hypothesis."""
    labels = [label for hypothesis in hypotheses for label in hypothesis]
    lengths = [len(hypothesis) for hypothesis in hypotheses]
    return torch.tensor(labels, dtype=torch.long, device=device), torch.tensor(lengths)
