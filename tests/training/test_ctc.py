"""The compiled CTC loss against PyTorch's in FP64, and its numerical limits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from training.objectives.ctc import ctc

BLANK = 28


def random_rows(seed: int, sharpness: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(12, 90, 29, generator=generator) * sharpness
    outputs = torch.randint(0, 91, (12,), generator=generator)
    lengths = torch.randint(0, 40, (12,), generator=generator)
    # Few characters, so that many neighbors are equal and need a blank between them.
    return scores, outputs, torch.randint(0, 3, (int(lengths.sum()),), generator=generator), lengths


def torch_ctc(scores: Tensor, outputs: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    log_probs = scores.double().log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_probs, targets, outputs, lengths, BLANK, reduction="none", zero_infinity=True)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_equal_those_of_pytorch(seed: int, sharpness: float) -> None:
    scores, outputs, targets, lengths = random_rows(seed, sharpness)
    weights = torch.linspace(0.1, 2.0, len(scores))
    a, b = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    expected = torch_ctc(a, outputs, targets, lengths)
    loss = ctc(b.log_softmax(-1), outputs, targets, lengths, BLANK)
    assert expected.bool().any() and not expected.bool().all()  # some targets do not fit
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    (expected * weights).sum().backward()
    (loss * weights).sum().backward()
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5)


def test_an_empty_target_has_the_loss_of_its_blanks() -> None:
    log_probs = torch.randn(1, 5, 29).log_softmax(-1)
    none = torch.zeros(0, dtype=torch.long)
    loss = ctc(log_probs, torch.tensor([4]), none, torch.tensor([0]), BLANK)
    assert float(loss) == pytest.approx(-float(log_probs[0, :4, BLANK].sum()), rel=1e-5)


def test_an_almost_impossible_target_has_a_large_loss_and_a_finite_gradient() -> None:
    scores = torch.zeros(1, 6, 29)
    scores[..., BLANK] = 500.0
    scores.requires_grad_()
    loss = ctc(scores.log_softmax(-1), torch.tensor([6]), torch.tensor([1, 1, 2]), torch.tensor([3]), BLANK)
    assert 200 < float(loss.detach()) < 300  # three labels at the smallest probability
    loss.sum().backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all() and scores.grad.any()
