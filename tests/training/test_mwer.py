"""The MWER objective: expected word errors of the n-best list and their gradient."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acoustic.architectures import ARCHITECTURES
from lm.decoders import SearchSettings
from lm.score import word_errors
from training.data.loader import Batch
from training.errors import TrainingError
from training.objectives.ctc import ctc
from training.objectives.mwer import MwerObjective
from training.objectives.objective import ForwardPass, Graphed, Loss, PreparedBatch, compute_loss
from training.recipe import MwerConfig, parse_recipe
from training.run.build import assemble

ALPHABET = ARCHITECTURES["tiny"].alphabet
BLANK = len(ALPHABET)
SEARCH = SearchSettings(width=64, blank_penalty=0.4, word_bonus=0.0, lm_weight=0.0)
CONFIG = MwerConfig(weight=1.0, hypotheses=8, beam_width=64, lm_weights=(0.0,))


class NoLoss:
    """An objective without a loss of its own, which only runs the model."""

    graphed: Sequence[Graphed] = ()

    def prepare(self, batch: Batch) -> PreparedBatch:
        raise AssertionError("these tests prepare their batches themselves")

    def forward(self, model: nn.Module, prepared: PreparedBatch) -> ForwardPass:
        log_probs, _ = model(prepared.features, prepared.frames)
        return ForwardPass(log_probs)

    def transcript_loss(self, prepared: PreparedBatch, log_probs: Tensor) -> Loss:
        return Loss(log_probs.sum() * 0.0)


class FixedOutput(nn.Module):
    """A model whose parameters are its output scores."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores.log_softmax(-1), frames


def prepared(texts: list[str], outputs: int, *, silent: tuple[int, ...] = ()) -> PreparedBatch:
    labels = torch.tensor(
        [ALPHABET.index(character) for text in texts for character in text], dtype=torch.long
    )
    lengths = torch.full((len(texts),), 100)
    batch = Batch(
        torch.zeros(len(texts), 100),
        lengths,
        labels,
        torch.tensor([len(text) for text in texts]),
        tuple(texts),
        7,
    )
    references = ["" if row in silent else text for row, text in enumerate(texts)]
    counts = torch.full((len(texts),), outputs)
    return PreparedBatch(
        batch,
        torch.zeros(len(texts), 1),
        counts,
        torch.tensor([row not in silent for row in range(len(texts))]),
        counts,
        torch.tensor(
            [ALPHABET.index(character) for text in references for character in text], dtype=torch.long
        ),
        torch.tensor([len(text) for text in references]),
        silent,
    )


def scores(*pairs: tuple[str, str], outputs: int = 40) -> Tensor:
    """Scores that favor the first text of each pair, one character every four outputs, and the second a little less."""
    values = 0.5 * torch.randn(len(pairs), outputs, BLANK + 1, generator=torch.Generator().manual_seed(3))
    values[..., BLANK] += 6.0
    for row, pair in enumerate(pairs):
        for text, height in zip(pair, (9.0, 8.7), strict=True):
            for index, character in enumerate(text):
                values[row, 4 * index, ALPHABET.index(character)] = height
    return values


def objective(config: MwerConfig = CONFIG) -> MwerObjective:
    return MwerObjective(NoLoss(), ALPHABET, config, SEARCH, None)


def test_the_gradient_is_that_of_the_expected_word_errors() -> None:
    reference, model = "a cat sat", FixedOutput(scores(("a cab sat", "a cat sad")))
    loss = compute_loss(objective(), model, prepared([reference], 40))
    torch.autograd.backward(loss.total)
    # Reference computation: probabilities of the hypotheses as a function of the outputs, and their word errors.
    copy = FixedOutput(model.scores.detach().clone())
    log_probs, outputs = copy(torch.zeros(1), torch.tensor([40]))
    utterance = objective().decoder.start(replace(SEARCH, n_best=8, unknown_penalty=0.0))
    utterance.push(log_probs[0].detach().numpy())
    hypotheses = utterance.finish()
    assert len(hypotheses) == 8
    errors = torch.tensor(
        [float(word_errors(reference, hypothesis.text).errors) for hypothesis in hypotheses]
    )
    penalty = torch.zeros(BLANK + 1)
    penalty[BLANK] = SEARCH.blank_penalty
    log_likelihoods = torch.stack(
        [
            -ctc(
                log_probs - penalty,
                outputs,
                torch.tensor([ALPHABET.index(character) for character in hypothesis.text]),
                torch.tensor([len(hypothesis.text)]),
                BLANK,
            )[0]
            for hypothesis in hypotheses
        ]
    )
    expected = (log_likelihoods.softmax(0) * errors).sum()
    assert float(loss.metrics["expected_errors"]) == pytest.approx(float(expected.detach()), rel=0.05)
    torch.autograd.backward(expected)
    assert model.scores.grad is not None and copy.scores.grad is not None
    size = float(copy.scores.grad.norm())
    assert size > 0.01 and float((model.scores.grad - copy.scores.grad).norm()) < 0.1 * size, (
        "the n-best list omits improbable hypotheses"
    )


def test_training_removes_word_errors() -> None:
    references = ["a cat sat", "two old men"]
    model = FixedOutput(scores(("a cab sat", "a cat set"), ("two odd men", "ten old man"), outputs=48))
    mwer, batch = objective(), prepared(references, 48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    first = compute_loss(mwer, model, batch).metrics
    assert float(first["best_errors"]) >= 2 and float(first["words"]) == 6
    for _ in range(150):
        optimizer.zero_grad()
        loss = compute_loss(mwer, model, batch)
        torch.autograd.backward(loss.total)
        optimizer.step()
    assert float(loss.metrics["best_errors"]) == 0
    assert float(loss.metrics["expected_errors"]) < 0.5 * float(first["expected_errors"])


def test_rows_without_a_transcript_have_no_loss_and_silent_rows_count_insertions() -> None:
    references = ["a cat sat", "a cat sat", ""]
    model = FixedOutput(scores(*[("a cab sat", "a catssad")] * 3))
    # Row 1 is silent (its speech was removed), row 2 has no transcript.
    loss = compute_loss(objective(), model, prepared(references, 40, silent=(1,)))
    torch.autograd.backward(loss.total)
    assert model.scores.grad is not None
    gradients = model.scores.grad.abs().sum((1, 2))
    assert gradients[0] > 0 and gradients[1] > 0 and gradients[2] == 0
    assert float(loss.metrics["words"]) == 3
    assert float(loss.metrics["best_errors"]) >= 4, "one error in row 0, three insertions in row 1"


def values(spoken: Path) -> dict[str, Any]:
    return {
        "title": "mwer",
        "model": {"name": "tiny"},
        "data": {"train": [str(spoken)], "batch_duration_s": 8.0, "max_duration_s": 9.0},
        "mwer": {"weight": 0.1, "hypotheses": 4, "beam_width": 8},
        "schedule": {"steps": 3},
        "run": {"ema_decay": 0.0, "evaluate_every": 0, "log_every": 1},
    }


def test_a_recipe_enables_mwer_and_logs_its_metrics(
    spoken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = assemble(parse_recipe(values(spoken), "test"), tmp_path / "run", live=False)
    assert isinstance(loop.objective, MwerObjective)
    assert loop.run().finished
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert len(lines) == 3
    for line in lines:
        metrics = dict(
            part.rsplit(" ", 1)
            for part in line.split(" · ")
            if part.startswith(("expected", "best", "words"))
        )
        assert (
            float(metrics["words"]) > 1 and float(metrics["expected_errors"]) > 0 and "best_errors" in metrics
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hypotheses": 300}, "at most mwer.beam_width hypotheses"),
        ({"lm_weights": []}, "at least one weight"),
        ({"lm_weights": [-0.1]}, "mwer.lm_weights"),
        ({"weight": -1.0}, "mwer.weight"),
    ],
)
def test_invalid_settings_are_refused(spoken: Path, changed: dict[str, Any], message: str) -> None:
    invalid = values(spoken)
    invalid["mwer"] |= changed
    with pytest.raises(TrainingError, match=message):
        parse_recipe(invalid, "test")
