"""Batch norm for training in bfloat16 on a CPU, compiled with numba, with an optional ReLU.

Two passes over memory forward and two backward. Tests compare it with PyTorch's.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from acoustic.network.depthwise import BLOCK_STEPS, HALF_WORD, Bits, Floats, bfloat16_bits, to_bfloat16

Sums = NDArray[np.float64]


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _moments(x: Bits, center: Floats, sums: Sums) -> None:
    """For each channel the sum of x - center and of its square. Steps are summed in blocks for precision."""
    steps, channels = x.shape
    part = np.empty((2, channels), np.float32)
    bits = np.empty(channels, np.uint32)
    wide = bits.view(np.float32)
    for first in range(0, steps, BLOCK_STEPS):
        part[:] = 0.0
        for t in range(first, min(steps, first + BLOCK_STEPS)):
            for c in range(channels):
                bits[c] = np.uint32(x[t, c]) << HALF_WORD
            for c in range(channels):
                difference = wide[c] - center[c]
                part[0, c] += difference
                part[1, c] += difference * difference
        sums += part


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _scale_and_shift(x: Bits, scale: Floats, shift: Floats, minimum: np.float32, out: Bits) -> None:
    """max(scale * x + shift, minimum)."""
    steps, channels = x.shape
    bits = np.empty(channels, np.uint32)
    wide = bits.view(np.float32)
    for t in range(steps):
        for c in range(channels):
            bits[c] = np.uint32(x[t, c]) << HALF_WORD
        for c in range(channels):
            wide[c] = max(wide[c] * scale[c] + shift[c], minimum)
        for c in range(channels):
            out[t, c] = to_bfloat16(bits[c])


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _gradient_sums(x: Bits, out: Bits, gradient: Bits, center: Floats, relu: bool, sums: Sums) -> None:
    """For each channel the sum of the gradient (after the ReLU's) and of its product with x - center."""
    steps, channels = x.shape
    part = np.empty((2, channels), np.float32)
    bits = np.empty((2, channels), np.uint32)
    wide = bits.view(np.float32)
    for first in range(0, steps, BLOCK_STEPS):
        part[:] = 0.0
        for t in range(first, min(steps, first + BLOCK_STEPS)):
            _load_step(x[t], out[t], gradient[t], relu, bits)
            for c in range(channels):
                part[0, c] += wide[1, c]
                part[1, c] += wide[1, c] * (wide[0, c] - center[c])
        sums += part


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _input_gradient(
    x: Bits, out: Bits, gradient: Bits, relu: bool, by_gradient: Floats, by_x: Floats, shift: Floats, to_x: Bits
) -> None:  # fmt: skip
    """by_gradient * gradient + by_x * x + shift."""
    steps, channels = x.shape
    bits = np.empty((2, channels), np.uint32)
    wide = bits.view(np.float32)
    for t in range(steps):
        _load_step(x[t], out[t], gradient[t], relu, bits)
        for c in range(channels):
            wide[0, c] = by_gradient[c] * wide[1, c] + by_x[c] * wide[0, c] + shift[c]
        for c in range(channels):
            to_x[t, c] = to_bfloat16(bits[0, c])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _load_step(x: Bits, out: Bits, gradient: Bits, relu: bool, bits: NDArray[np.uint32]) -> None:
    """One step of x and of the gradient as float32 bits; with `relu` the gradient is zero where the output is."""
    for c in range(len(x)):
        bits[0, c] = np.uint32(x[c]) << HALF_WORD
        bits[1, c] = np.uint32(gradient[c]) << HALF_WORD
    if relu:
        for c in range(len(x)):
            bits[1, c] = bits[1, c] if out[c] != 0 else np.uint32(0)


class _BatchNorm(torch.autograd.Function):
    """x [steps, channels] to its normalized values and the mean and variance of the batch."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor, center: Tensor, epsilon: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        sums = np.zeros((2, x.shape[1]))
        _moments(bfloat16_bits(x), center.numpy(), sums)
        first, second = torch.from_numpy(sums / len(x))
        mean, variance = center.double() + first, (second - first.square()).clamp(min=0)
        inverse = (variance + epsilon).rsqrt()
        scale = weight.detach().double() * inverse
        shift = bias.detach().double() - mean * scale
        out = torch.empty_like(x)
        minimum = np.float32(0.0 if relu else -np.inf)
        _scale_and_shift(
            bfloat16_bits(x), scale.float().numpy(), shift.float().numpy(), minimum, bfloat16_bits(out)
        )
        context.save_for_backward(x, out, mean, inverse, scale)
        context.relu = relu
        context.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        x, out, mean, inverse, scale = context.saved_tensors
        gradient, count = gradients[0].contiguous(), len(x)
        tensors = bfloat16_bits(x), bfloat16_bits(out), bfloat16_bits(gradient)
        sums = np.zeros((2, x.shape[1]))
        _gradient_sums(*tensors, mean.float().numpy(), context.relu, sums)
        to_bias, by_difference = torch.from_numpy(sums)
        to_weight = by_difference * inverse
        by_x = -scale * inverse * to_weight / count
        shift = -scale * to_bias / count - by_x * mean
        to_x = torch.empty_like(x)
        by_gradient, by_x, shift = (factor.float().numpy() for factor in (scale, by_x, shift))
        _input_gradient(*tensors, context.relu, by_gradient, by_x, shift, bfloat16_bits(to_x))
        return to_x, to_weight.float(), to_bias.float(), None, None, None


def batch_norm(x: Tensor, norm: nn.BatchNorm1d, *, relu: bool) -> Tensor:
    """The training forward pass of `norm` on x [rows, channels, steps], bfloat16 and time-major, then ReLU if `relu`.

    Updates the running statistics.
    """
    flat = x.mT.reshape(-1, x.shape[1])
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    result: tuple[Tensor, Tensor, Tensor] = _BatchNorm.apply(  # type: ignore[no-untyped-call]
        flat, norm.weight, norm.bias, norm.running_mean.clone(), norm.eps, relu
    )
    out, mean, variance = result
    with torch.no_grad():
        norm.running_mean.lerp_(mean.float(), norm.momentum)
        norm.running_var.lerp_((variance * (len(flat) / max(1, len(flat) - 1))).float(), norm.momentum)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
    return out.view(x.mT.shape).mT
