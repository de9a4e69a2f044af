"""The compiled depthwise taps of training against PyTorch's convolution, and a whole network with and without them."""

import pytest
import torch
from torch import Tensor, nn

from acoustic.architectures import published
from acoustic.network import build, modules
from acoustic.network.depthwise import depthwise
from acoustic.network.modules import SubBlock, convolve, pad_time, time_major


@pytest.mark.parametrize("taps", [1, 5, 8])
@pytest.mark.parametrize("left", [0, 2, 4, 7])
def test_forward_and_both_gradients_are_those_of_a_masked_convolution(taps: int, left: int) -> None:
    left = min(left, taps - 1)
    torch.manual_seed(taps)
    lengths = torch.tensor([20, 7, 1, 0])
    mask = time_major((torch.arange(20)[None, :] < lengths[:, None])[:, None].expand(4, 48, 20).bfloat16())
    conv = nn.Conv1d(48, 48, taps, groups=48, bias=False)
    audio, gradient = torch.randn(4, 48, 20).bfloat16(), time_major(torch.randn(4, 48, 20).bfloat16())

    def theirs(x: Tensor) -> Tensor:
        return convolve(pad_time(x * mask, left, taps - 1 - left), conv) * mask

    results = []
    for ours in (False, True):
        conv.weight.grad = None
        x = time_major(audio).requires_grad_()
        x.retain_grad()
        out = depthwise(x, conv.weight, lengths, left) if ours else theirs(x)
        out.backward(gradient)
        assert x.grad is not None and conv.weight.grad is not None
        results.append((out.detach().float(), x.grad.float(), conv.weight.grad.clone()))
    for mine, other in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=2e-2)  # a last place of 16 bits


def test_a_network_in_16_bits_learns_the_same_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = published["silica-small"]
    features, lengths = torch.randn(3, 64, 240), torch.tensor([240, 133, 64])
    gradients, compiled = [], modules.uses_compiled_depthwise
    asked: list[bool] = []

    def watched(unit: SubBlock, conv: nn.Conv1d, x: Tensor, dilation: int) -> bool:
        asked.append(compiled(unit, conv, x, dilation))
        return asked[-1]

    for choose in (watched, lambda *_: False):
        monkeypatch.setattr(modules, "uses_compiled_depthwise", choose)
        torch.manual_seed(0)
        network = build(config).train()
        with torch.autocast("cpu", torch.bfloat16):
            log_probs, _ = network(features, lengths)
        log_probs.float()[..., -1].mean().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in network.parameters()]))
    assert sum(asked) == 18  # the taps of six blocks of three; the stem is no depthwise one
    likeness = torch.cosine_similarity(*gradients, dim=0)
    assert likeness > 0.99
    assert gradients[0].norm() == pytest.approx(float(gradients[1].norm()), rel=0.02)


def test_evaluation_is_left_to_pytorch() -> None:
    unit = build(published["silica-small"]).eval().blocks[3].units[0]
    assert not modules.uses_compiled_depthwise(unit, unit.temporal_conv, time_major(torch.randn(1, 384, 10).bfloat16()), 1)
