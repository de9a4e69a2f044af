"""Batch norm in training in 16 bits on a CPU, compiled, with the rectifier that follows it where one does: two passes
over memory forward and two back. PyTorch's own way is what tests hold this against.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from acoustic.network.depthwise import HALF, LONG, Bits, Floats, bits_of, narrowed

Sums = NDArray[np.float64]


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _moments(x: Bits, about: Floats, sums: Sums) -> None:
    """For each channel the sum of x - about, and of its square."""
    steps, channels = x.shape
    part = np.empty((2, channels), np.float32)
    bits = np.empty(channels, np.uint32)
    wide = bits.view(np.float32)
    for first in range(0, steps, LONG):
        part[:] = 0.0
        for t in range(first, min(steps, first + LONG)):
            for c in range(channels):
                bits[c] = np.uint32(x[t, c]) << HALF
            for c in range(channels):
                apart = wide[c] - about[c]
                part[0, c] += apart
                part[1, c] += apart * apart
        sums += part


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _scaled(x: Bits, scale: Floats, shift: Floats, least: np.float32, out: Bits) -> None:
    """scale * x + shift, `least` at least."""
    steps, channels = x.shape
    bits = np.empty(channels, np.uint32)
    wide = bits.view(np.float32)
    for t in range(steps):
        for c in range(channels):
            bits[c] = np.uint32(x[t, c]) << HALF
        for c in range(channels):
            wide[c] = max(wide[c] * scale[c] + shift[c], least)
        for c in range(channels):
            out[t, c] = narrowed(bits[c])


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _pulls(x: Bits, out: Bits, gradient: Bits, about: Floats, rectified: bool, sums: Sums) -> None:
    """For each channel the sum of the gradient, where anything passed, and of its product with x - about."""
    steps, channels = x.shape
    part = np.empty((2, channels), np.float32)
    bits = np.empty((2, channels), np.uint32)
    wide = bits.view(np.float32)
    for first in range(0, steps, LONG):
        part[:] = 0.0
        for t in range(first, min(steps, first + LONG)):
            _passed(x[t], out[t], gradient[t], rectified, bits)
            for c in range(channels):
                part[0, c] += wide[1, c]
                part[1, c] += wide[1, c] * (wide[0, c] - about[c])
        sums += part


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _back(
    x: Bits, out: Bits, gradient: Bits, rectified: bool, by_gradient: Floats, by_x: Floats, shift: Floats, to_x: Bits
) -> None:  # fmt: skip
    """by_gradient * gradient + by_x * x + shift."""
    steps, channels = x.shape
    bits = np.empty((2, channels), np.uint32)
    wide = bits.view(np.float32)
    for t in range(steps):
        _passed(x[t], out[t], gradient[t], rectified, bits)
        for c in range(channels):
            wide[0, c] = by_gradient[c] * wide[1, c] + by_x[c] * wide[0, c] + shift[c]
        for c in range(channels):
            to_x[t, c] = narrowed(bits[0, c])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _passed(x: Bits, out: Bits, gradient: Bits, rectified: bool, bits: NDArray[np.uint32]) -> None:
    """One step of x and of the gradient, widened; of the gradient only what the rectifier let pass."""
    for c in range(len(x)):
        bits[0, c] = np.uint32(x[c]) << HALF
        bits[1, c] = np.uint32(gradient[c]) << HALF
    if rectified:
        for c in range(len(x)):
            bits[1, c] = bits[1, c] if out[c] != 0 else np.uint32(0)


class _Normed(torch.autograd.Function):
    """x [steps, channels], its batch's mean and variance found here and handed out too."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor, about: Tensor, epsilon: float, rectified: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        sums = np.zeros((2, x.shape[1]))
        _moments(bits_of(x), about.numpy(), sums)
        first, second = torch.from_numpy(sums / len(x))
        mean, variance = about.double() + first, (second - first.square()).clamp(min=0)
        inverse = (variance + epsilon).rsqrt()
        scale = weight.detach().double() * inverse
        shift = bias.detach().double() - mean * scale
        out = torch.empty_like(x)
        least = np.float32(0.0 if rectified else -np.inf)
        _scaled(bits_of(x), scale.float().numpy(), shift.float().numpy(), least, bits_of(out))
        context.save_for_backward(x, out, mean, inverse, scale)
        context.rectified = rectified
        context.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        x, out, mean, inverse, scale = context.saved_tensors
        gradient, count = gradients[0].contiguous(), len(x)
        parts = bits_of(x), bits_of(out), bits_of(gradient)
        sums = np.zeros((2, x.shape[1]))
        _pulls(*parts, mean.float().numpy(), context.rectified, sums)
        to_bias, along = torch.from_numpy(sums)
        to_weight = along * inverse
        by_x = -scale * inverse * to_weight / count
        shift = -scale * to_bias / count - by_x * mean
        to_x = torch.empty_like(x)
        by_gradient, by_x, shift = (factor.float().numpy() for factor in (scale, by_x, shift))
        _back(*parts, context.rectified, by_gradient, by_x, shift, bits_of(to_x))
        return to_x, to_weight.float(), to_bias.float(), None, None, None


def batch_normed(x: Tensor, norm: nn.BatchNorm1d, *, rectified: bool) -> Tensor:
    """x [rows, channels, steps] in bfloat16 and in the layout of `acoustic.network.modules.by_step` as `norm` in
    training
    makes it, and what of it is above nought where it is `rectified`."""
    flat = x.mT.reshape(-1, x.shape[1])
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    made: tuple[Tensor, Tensor, Tensor] = _Normed.apply(  # type: ignore[no-untyped-call]
        flat, norm.weight, norm.bias, norm.running_mean.clone(), norm.eps, rectified
    )
    out, mean, variance = made
    with torch.no_grad():
        norm.running_mean.lerp_(mean.float(), norm.momentum)
        norm.running_var.lerp_((variance * (len(flat) / max(1, len(flat) - 1))).float(), norm.momentum)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
    return out.view(x.mT.shape).mT
