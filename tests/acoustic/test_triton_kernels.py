"""Triton kernels for training equal PyTorch in double precision.

Needs a GPU, or Triton's interpreter (`pip install triton`, TRITON_INTERPRET=1).
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for GPUs")
ON_GPU = torch.cuda.is_available()
if not ON_GPU and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from acoustic.network import triton_batch_norm, triton_depthwise  # noqa: E402
from training.augment.speed import STEPS, change_speed  # noqa: E402
from training.augment.triton_speed import resampled  # noqa: E402

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array:DeprecationWarning"
)  # raised by the interpreter


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float(
        (actual.detach().double() - expected.detach().double()).norm() / expected.detach().double().norm()
    )


def valid(lengths: Tensor, steps: int) -> Tensor:
    return (torch.arange(steps, device=DEVICE)[None] < lengths[:, None])[..., None]


def reference(
    x: Tensor, weight: Tensor, lengths: Tensor, left: int, stride: int = 1, dilation: int = 1
) -> Tensor:
    steps, kernel_size = x.shape[1], weight.shape[2]
    padded = F.pad((x.double() * valid(lengths, steps)).mT, (left, (kernel_size - 1) * dilation - left))
    out = F.conv1d(padded, weight.double(), None, stride, 0, dilation, x.shape[2]).mT
    return out * valid(-(-lengths // stride), out.shape[1])


@pytest.mark.parametrize(
    ("rows", "steps", "channels", "kernel_size", "left"),
    [(3, 50, 70, 11, 8), (2, 37, 64, 21, 10), (2, 200, 16, 75, 37), (1, 3, 5, 33, 20), (2, 8, 64, 1, 0)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_depthwise_and_gradients(
    rows: int, steps: int, channels: int, kernel_size: int, left: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, steps, channels, device=DEVICE).to(dtype)
    weight = torch.randn(channels, 1, kernel_size, device=DEVICE)
    lengths = torch.tensor([steps, max(1, steps - 7), steps // 2][:rows], device=DEVICE)
    gradient = torch.randn(rows, steps, channels, device=DEVICE).to(dtype)
    ours = x.clone().requires_grad_(), weight.clone().requires_grad_()
    theirs = x.double().requires_grad_(), weight.double().requires_grad_()
    actual = triton_depthwise.depthwise(ours[0].mT, ours[1], lengths, left).mT
    expected = reference(*theirs, lengths, left)
    actual.backward(gradient)
    expected.backward(gradient.double())
    tolerance = 5e-3 if dtype == torch.bfloat16 else 1e-6
    assert relative_error(actual, expected) < tolerance
    assert relative_error(ours[0].grad, theirs[0].grad) < tolerance
    assert relative_error(ours[1].grad, theirs[1].grad) < 1e-6


@pytest.mark.parametrize(("stride", "dilation"), [(2, 1), (1, 2), (4, 1)])
def test_depthwise_with_a_stride_or_dilation(stride: int, dilation: int) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(2, 41, 64, device=DEVICE), torch.randn(64, 1, 9, device=DEVICE)
    lengths = torch.tensor([41, 30], device=DEVICE)
    left = 4 * dilation
    actual = triton_depthwise.depthwise(x.mT, weight, lengths, left, stride, dilation).mT
    assert (
        relative_error(actual, reference(x, weight, lengths, left, stride, dilation)[:, : actual.shape[1]])
        < 1e-6
    )


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("rows", "steps", "channels"), [(3, 50, 70), (4, 41, 64), (1, 2, 16)])
def test_batch_norm_and_gradients(rows: int, steps: int, channels: int, relu: bool) -> None:
    torch.manual_seed(2)
    x = torch.randn(rows, steps, channels, device=DEVICE) * 2 + 1
    gradient = torch.randn(rows, steps, channels, device=DEVICE)
    ours = nn.BatchNorm1d(channels, eps=1e-3).to(DEVICE)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs = nn.BatchNorm1d(channels, eps=1e-3).to(DEVICE).double()
    theirs.load_state_dict(ours.state_dict())
    padded, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    for _ in range(2):  # the second time with running statistics other than the initial ones
        actual = triton_batch_norm.batch_norm(padded.mT, ours, relu=relu).mT
        expected = theirs(exact.flatten(0, 1)).view_as(exact)
        expected = expected.relu() if relu else expected
    actual.backward(gradient)
    expected.backward(gradient.double())
    assert relative_error(actual, expected) < 1e-5
    assert relative_error(padded.grad, exact.grad) < 1e-3
    assert relative_error(ours.weight.grad, theirs.weight.grad) < 1e-4
    assert relative_error(ours.bias.grad, theirs.bias.grad) < 1e-4
    assert relative_error(ours.running_mean, theirs.running_mean) < 1e-5
    assert relative_error(ours.running_var, theirs.running_var) < 1e-5
    assert int(ours.num_batches_tracked) == 2


def test_speed_change_matches_the_fourier_method() -> None:
    torch.manual_seed(3)
    time = torch.arange(6000) / 16000
    audio = torch.stack([torch.sin(6283 * 0.44 * time), 0.1 * torch.randn(6000)])
    spectrum = torch.fft.rfft(audio)
    # Near the Nyquist frequency the methods may differ.
    spectrum[:, int(spectrum.shape[1] * 0.85) :] = 0
    audio, lengths = torch.fft.irfft(spectrum), torch.tensor([6000, 5000])
    audio[1, 5000:] = 0
    for factors in ((1.15, 0.87), (1.0, 1.06)):
        expected, counts = change_speed(audio, lengths, torch.tensor(factors))
        steps = torch.round(STEPS / torch.tensor(factors).double()).long()
        actual = resampled(audio.to(DEVICE), lengths, steps, expected.shape[1] + 10, STEPS).cpu()
        for row, count in enumerate(counts.tolist()):
            inside = slice(100, count - 200)
            assert relative_error(actual[row, inside], expected[row, inside]) < 1e-3
            assert not actual[row, count:].any()
