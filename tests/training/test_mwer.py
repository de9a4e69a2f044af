"""Mistakes to be expected of the search's readings: counted rightly, their gradient theirs, and learnt from."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acoustic.architectures import published
from lm.decoders import SearchSettings
from lm.score import word_errors
from training.data.loader import Batch
from training.errors import TrainingError
from training.objectives.ctc import ctc
from training.objectives.mwer import MwerObjective
from training.objectives.objective import ForwardPass, Graphed, Loss, PreparedBatch, compute_loss
from training.recipe import MwerConfig, parse_recipe
from training.run.build import assemble

ALPHABET = published["tiny"].alphabet
BLANK = len(ALPHABET)
SEARCH = SearchSettings(width=64, blank_penalty=0.4, word_bonus=0.0, lm_weight=0.0)
PART = MwerConfig(weight=1.0, hypotheses=8, beam_width=64, lm_weights=(0.0,))


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


class Written(nn.Module):
    """What is written, to be learnt directly."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores.log_softmax(-1), frames


def prepared(texts: list[str], outputs: int, *, silent: tuple[int, ...] = ()) -> PreparedBatch:
    labels = torch.tensor([ALPHABET.index(letter) for text in texts for letter in text], dtype=torch.long)
    lengths = torch.full((len(texts),), 100)
    batch = Batch(
        torch.zeros(len(texts), 100),
        lengths,
        labels,
        torch.tensor([len(text) for text in texts]),
        tuple(texts),
        7,
    )
    spoken = ["" if row in silent else text for row, text in enumerate(texts)]
    counts = torch.full((len(texts),), outputs)
    return PreparedBatch(
        batch,
        torch.zeros(len(texts), 1),
        counts,
        torch.tensor([row not in silent for row in range(len(texts))]),
        counts,
        torch.tensor([ALPHABET.index(letter) for text in spoken for letter in text], dtype=torch.long),
        torch.tensor([len(text) for text in spoken]),
        silent,
    )


def scores(*pairs: tuple[str, str], outputs: int = 40) -> Tensor:
    """Of each pair the first text is written letter by letter, four outputs apart, and the second one nearly as
    surely."""
    made = 0.5 * torch.randn(len(pairs), outputs, BLANK + 1, generator=torch.Generator().manual_seed(3))
    made[..., BLANK] += 6.0
    for row, pair in enumerate(pairs):
        for text, height in zip(pair, (9.0, 8.7), strict=True):
            for place, letter in enumerate(text):
                made[row, 4 * place, ALPHABET.index(letter)] = height
    return made


def objective(part: MwerConfig = PART) -> MwerObjective:
    return MwerObjective(NoLoss(), ALPHABET, part, SEARCH, None)


def test_the_gradient_is_that_of_the_mistakes_to_be_expected() -> None:
    said, model = "a cat sat", Written(scores(("a cab sat", "a cat sad")))
    loss = compute_loss(objective(), model, prepared([said], 40))
    torch.autograd.backward(loss.total)
    # The same by hand: the readings' shares as a function of the outputs, and what is wrong with each.
    again = Written(model.scores.detach().clone())
    log_probs, outputs = again(torch.zeros(1), torch.tensor([40]))
    utterance = objective().decoder.start(replace(SEARCH, n_best=8, unknown_penalty=0.0))
    utterance.push(log_probs[0].detach().numpy())
    found = utterance.finish()
    assert len(found) == 8
    wrong = torch.tensor([float(word_errors(said, reading.text).errors) for reading in found])
    leaning = torch.zeros(BLANK + 1)
    leaning[BLANK] = SEARCH.blank_penalty
    likely = torch.stack(
        [
            -ctc(
                log_probs - leaning,
                outputs,
                torch.tensor([ALPHABET.index(letter) for letter in reading.text]),
                torch.tensor([len(reading.text)]),
                BLANK,
            )[0]
            for reading in found
        ]
    )
    expected = (likely.softmax(0) * wrong).sum()
    assert float(loss.metrics["expected_errors"]) == pytest.approx(float(expected.detach()), rel=0.05)
    torch.autograd.backward(expected)
    assert model.scores.grad is not None and again.scores.grad is not None
    size = float(again.scores.grad.norm())
    assert size > 0.01 and float((model.scores.grad - again.scores.grad).norm()) < 0.1 * size, (
        "the search leaves out what is improbable"
    )


def test_what_is_written_wrong_is_unlearnt() -> None:
    said = ["a cat sat", "two old men"]
    model = Written(scores(("a cab sat", "a cat set"), ("two odd men", "ten old man"), outputs=48))
    counting, batch = objective(), prepared(said, 48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    first = compute_loss(counting, model, batch).metrics
    assert float(first["best_errors"]) >= 2 and float(first["words"]) == 6
    for _ in range(150):
        optimizer.zero_grad()
        loss = compute_loss(counting, model, batch)
        torch.autograd.backward(loss.total)
        optimizer.step()
    assert float(loss.metrics["best_errors"]) == 0
    assert float(loss.metrics["expected_errors"]) < 0.5 * float(first["expected_errors"])


def test_rows_that_no_text_tells_of_count_nothing_and_silent_ones_what_is_written() -> None:
    said = ["a cat sat", "a cat sat", ""]
    model = Written(scores(*[("a cab sat", "a catssad")] * 3))
    # The second is silent (whatever its clip said), the third has no text.
    loss = compute_loss(objective(), model, prepared(said, 40, silent=(1,)))
    torch.autograd.backward(loss.total)
    assert model.scores.grad is not None
    moved = model.scores.grad.abs().sum((1, 2))
    assert moved[0] > 0 and moved[1] > 0 and moved[2] == 0
    assert float(loss.metrics["words"]) == 3
    assert float(loss.metrics["best_errors"]) >= 4, (
        "one of the first, three words made up in the second"
    )


def values(spoken: Path) -> dict[str, Any]:
    return {
        "title": "mwer",
        "model": {"name": "tiny"},
        "data": {"train": [str(spoken)], "batch_duration_s": 8.0, "max_duration_s": 9.0},
        "mwer": {"weight": 0.1, "hypotheses": 4, "beam_width": 8},
        "schedule": {"steps": 3},
        "run": {"ema_decay": 0.0, "evaluate_every": 0, "log_every": 1},
    }


def test_a_recipe_asks_for_them(spoken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = assemble(parse_recipe(values(spoken), "test"), tmp_path / "run", live=False)
    assert isinstance(loop.objective, MwerObjective)
    assert loop.run().finished
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert len(lines) == 3
    for line in lines:
        told = dict(
            part.rsplit(" ", 1) for part in line.split(" · ") if part.startswith(("expected", "best", "words"))
        )
        assert (
            float(told["words"]) > 1 and float(told["expected_errors"]) > 0 and "best_errors" in told
        )


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hypotheses": 300}, "at most mwer.beam_width hypotheses"),
        ({"lm_weights": []}, "at least one weight"),
        ({"lm_weights": [-0.1]}, "mwer.lm_weights"),
        ({"weight": -1.0}, "mwer.weight"),
    ],
)
def test_what_makes_no_sense_is_named(spoken: Path, changed: dict[str, Any], named: str) -> None:
    wrong = values(spoken)
    wrong["mwer"] |= changed
    with pytest.raises(TrainingError, match=named):
        parse_recipe(wrong, "test")
