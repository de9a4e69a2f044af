"""The compiled depthwise convolution equals PyTorch's, alone and in a network."""

import pytest
import torch
from torch import Tensor, nn

from acoustic.architectures import ARCHITECTURES
from acoustic.network import build, modules
from acoustic.network.depthwise import depthwise
from acoustic.network.modules import SubBlock, convolve, pad_time, time_major


@pytest.mark.parametrize("kernel", [1, 5, 8])
@pytest.mark.parametrize("left", [0, 2, 4, 7])
def test_output_and_gradients_match_a_masked_convolution(kernel: int, left: int) -> None:
    left = min(left, kernel - 1)
    torch.manual_seed(kernel)
    lengths = torch.tensor([20, 7, 1, 0])
    mask = time_major((torch.arange(20)[None, :] < lengths[:, None])[:, None].expand(4, 48, 20).bfloat16())
    conv = nn.Conv1d(48, 48, kernel, groups=48, bias=False)
    values, gradient = torch.randn(4, 48, 20).bfloat16(), time_major(torch.randn(4, 48, 20).bfloat16())

    def reference(x: Tensor) -> Tensor:
        return convolve(pad_time(x * mask, left, kernel - 1 - left), conv) * mask

    results = []
    for compiled in (False, True):
        conv.weight.grad = None
        x = time_major(values).requires_grad_()
        x.retain_grad()
        out = depthwise(x, conv.weight, lengths, left) if compiled else reference(x)
        out.backward(gradient)
        assert x.grad is not None and conv.weight.grad is not None
        results.append((out.detach().float(), x.grad.float(), conv.weight.grad.clone()))
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=2e-2)  # bfloat16


def test_network_gradients_in_bfloat16_match_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ARCHITECTURES["silica-small"]
    features, lengths = torch.randn(3, 64, 240), torch.tensor([240, 133, 64])
    gradients, compiled = [], modules.uses_compiled_depthwise
    compiled_calls: list[bool] = []

    def recording(sub_block: SubBlock, conv: nn.Conv1d, x: Tensor, dilation: int) -> bool:
        compiled_calls.append(compiled(sub_block, conv, x, dilation))
        return compiled_calls[-1]

    for choose in (recording, lambda *_: False):
        monkeypatch.setattr(modules, "uses_compiled_depthwise", choose)
        torch.manual_seed(0)
        network = build(config).train()
        with torch.autocast("cpu", torch.bfloat16):
            log_probs, _ = network(features, lengths)
        log_probs.float()[..., -1].mean().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in network.parameters()]))
    assert sum(compiled_calls) == 18  # six blocks of three; the stem is not depthwise
    similarity = torch.cosine_similarity(*gradients, dim=0)
    assert similarity > 0.99
    assert gradients[0].norm() == pytest.approx(float(gradients[1].norm()), rel=0.02)


def test_evaluation_uses_pytorch() -> None:
    sub_block = build(ARCHITECTURES["silica-small"]).eval().blocks[3].units[0]
    x = time_major(torch.randn(1, 384, 10).bfloat16())
    assert not modules.uses_compiled_depthwise(sub_block, sub_block.temporal_conv, x, 1)
