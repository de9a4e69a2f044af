"""The compiled batch norm equals PyTorch's, alone and in a network."""

import pytest
import torch
from torch import nn

from acoustic.architectures import ARCHITECTURES
from acoustic.network import build, modules
from acoustic.network.batch_norm import batch_norm
from acoustic.network.modules import BatchNorm, time_major


@pytest.mark.parametrize("relu", [True, False])
def test_output_gradients_and_running_statistics_match_pytorch(relu: bool) -> None:
    torch.manual_seed(0)
    # A mean far from zero, where a plain sum of squares would lose precision; more steps than one block.
    values, gradient = (
        (8 + torch.randn(3, 48, 150)).bfloat16(),
        time_major(torch.randn(3, 48, 150).bfloat16()),
    )
    ours, theirs = BatchNorm(48, eps=1e-3, momentum=0.1), BatchNorm(48, eps=1e-3, momentum=0.1)
    nn.init.uniform_(ours.weight, -1.5, 1.5)
    nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    x, exact = time_major(values).requires_grad_(), values.float().requires_grad_()
    out = batch_norm(x, ours, relu=relu)
    expected = torch.relu(theirs(exact)) if relu else theirs(exact)
    # Tolerances of bfloat16; values near zero may fall on either side of the ReLU.
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
    to_x, *to_norm = torch.autograd.grad(out, [x, *ours.parameters()], gradient)
    to_exact, *to_others = torch.autograd.grad(expected, [exact, *theirs.parameters()], gradient.float())
    assert (to_x.float() - to_exact).norm() < 0.01 * to_exact.norm()
    for mine, other in zip(to_norm, to_others, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-2)
    for our_buffer, their_buffer in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(our_buffer, their_buffer, rtol=1e-4, atol=1e-5)


def test_network_gradients_are_as_close_to_float32_as_with_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(5)
    features, lengths = torch.randn(3, 64, 240), torch.tensor([240, 133, 64])
    compiled, compiled_calls = modules.uses_compiled_batch_norm, list[bool]()

    def recording(norm: nn.Module, x: torch.Tensor) -> bool:
        compiled_calls.append(compiled(norm, x))
        return compiled_calls[-1]

    def gradients(*, in_16_bits: bool) -> torch.Tensor:
        torch.manual_seed(0)
        network = build(ARCHITECTURES["silica-small"]).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=in_16_bits):
            log_probs, _ = network(features, lengths)
        by_weight = torch.autograd.grad(log_probs.float()[..., -1].mean(), list(network.parameters()))
        return torch.cat([gradient.flatten() for gradient in by_weight])

    exact = gradients(in_16_bits=False)
    monkeypatch.setattr(modules, "uses_compiled_batch_norm", recording)
    ours = gradients(in_16_bits=True)
    assert compiled_calls and all(compiled_calls)
    monkeypatch.setattr(modules, "uses_compiled_batch_norm", lambda *_: False)
    theirs = gradients(in_16_bits=True)
    similarity = torch.cosine_similarity(ours, exact, dim=0)
    assert similarity > torch.cosine_similarity(theirs, exact, dim=0) - 0.03  # rounding alone costs 0.08
    assert ours.norm() == pytest.approx(float(exact.norm()), rel=0.05)


def test_evaluation_and_float32_use_pytorch() -> None:
    x = time_major(torch.randn(1, 16, 10))
    assert not modules.uses_compiled_batch_norm(BatchNorm(16), x)
    assert modules.uses_compiled_batch_norm(BatchNorm(16), x.bfloat16())
    assert not modules.uses_compiled_batch_norm(BatchNorm(16).eval(), x.bfloat16())
