"""The compiled batch norm of training against PyTorch's, with and without its rectifier, and a network with it."""

import pytest
import torch
from torch import nn

from acoustic.architectures import published
from acoustic.network import build, modules
from acoustic.network.batch_norm import batch_norm
from acoustic.network.modules import BatchNorm, time_major


@pytest.mark.parametrize("relu", [True, False])
def test_output_gradients_and_statistics_are_those_of_pytorch(relu: bool) -> None:
    torch.manual_seed(0)
    # Far from nought, as a sum of squares would not like it; more steps than are added up at once.
    audio, gradient = (8 + torch.randn(3, 48, 150)).bfloat16(), time_major(torch.randn(3, 48, 150).bfloat16())
    ours, theirs = BatchNorm(48, eps=1e-3, momentum=0.1), BatchNorm(48, eps=1e-3, momentum=0.1)
    nn.init.uniform_(ours.weight, -1.5, 1.5)
    nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    x, exact = time_major(audio).requires_grad_(), audio.float().requires_grad_()
    out = batch_norm(x, ours, relu=relu)
    wanted = torch.relu(theirs(exact)) if relu else theirs(exact)
    # A last place of 16 bits; what lies on the rectifier's edge may fall to either side.
    torch.testing.assert_close(out.float(), wanted, rtol=1e-2, atol=1e-2)
    to_x, *to_norm = torch.autograd.grad(out, [x, *ours.parameters()], gradient)
    to_exact, *to_others = torch.autograd.grad(wanted, [exact, *theirs.parameters()], gradient.float())
    assert (to_x.float() - to_exact).norm() < 0.01 * to_exact.norm()
    for mine, other in zip(to_norm, to_others, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-2)
    for kept, known in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(kept, known, rtol=1e-4, atol=1e-5)


def test_a_network_learns_as_near_to_32_bits_with_it_as_with_pytorchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(5)
    features, lengths = torch.randn(3, 64, 240), torch.tensor([240, 133, 64])
    compiled, asked = modules.uses_compiled_batch_norm, list[bool]()

    def watched(norm: nn.Module, x: torch.Tensor) -> bool:
        asked.append(compiled(norm, x))
        return asked[-1]

    def gradients(*, in_16_bits: bool) -> torch.Tensor:
        torch.manual_seed(0)
        network = build(published["silica-small"]).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=in_16_bits):
            log_probs, _ = network(features, lengths)
        grown = torch.autograd.grad(log_probs.float()[..., -1].mean(), list(network.parameters()))
        return torch.cat([gradient.flatten() for gradient in grown])

    exact = gradients(in_16_bits=False)
    monkeypatch.setattr(modules, "uses_compiled_batch_norm", watched)
    ours = gradients(in_16_bits=True)
    assert asked and all(asked)
    monkeypatch.setattr(modules, "uses_compiled_batch_norm", lambda *_: False)
    theirs = gradients(in_16_bits=True)
    near = torch.cosine_similarity(ours, exact, dim=0)
    assert near > torch.cosine_similarity(theirs, exact, dim=0) - 0.03  # rounding alone is worth 0.08
    assert ours.norm() == pytest.approx(float(exact.norm()), rel=0.05)


def test_evaluation_and_32_bits_are_left_to_pytorch() -> None:
    x = time_major(torch.randn(1, 16, 10))
    assert not modules.uses_compiled_batch_norm(BatchNorm(16), x)
    assert modules.uses_compiled_batch_norm(BatchNorm(16), x.bfloat16())
    assert not modules.uses_compiled_batch_norm(BatchNorm(16).eval(), x.bfloat16())
