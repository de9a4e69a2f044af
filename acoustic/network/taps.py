"""Depthwise taps in training in 16 bits on a CPU, compiled: forward and both gradients in one pass each over memory.

PyTorch pads, masks, widens to 32 bits, convolves and narrows again, each time through all of the memory, which takes
three times as long. Here what lies beyond a row's length counts as zero and comes out as zero, and sums are in 32 bits.
PyTorch's own way (`acoustic.network.parts`) is what tests hold this against.

numpy has no bfloat16: arrays of it are passed as their bits, the upper half of those of 32-bit numbers.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]
HALF = np.uint32(16)
LAST = np.uint32(1)
ALMOST_HALF = np.uint32(0x7FFF)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _widen(narrow: Bits, wide: NDArray[np.uint32]) -> None:
    steps, channels = narrow.shape
    for t in range(steps):
        for c in range(channels):
            wide[t, c] = np.uint32(narrow[t, c]) << HALF


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _slide(x: Bits, taps: Floats, lengths: NDArray[np.int64], left: int, out: Bits) -> None:
    """out[row, t] = sum over k of taps[k] * x[row, t + k - left]."""
    rows, steps, channels = x.shape
    bits = np.empty((steps, channels), np.uint32)
    wide = bits.view(np.float32)
    sum_bits = np.empty(channels, np.uint32)
    sums = sum_bits.view(np.float32)
    for row in range(rows):
        length = min(lengths[row], steps)
        _widen(x[row, :length], bits)
        for t in range(length):
            sums[:] = 0.0
            for k in range(max(0, left - t), min(len(taps), length - t + left)):
                for c in range(channels):
                    sums[c] += taps[k, c] * wide[t + k - left, c]
            for c in range(channels):  # rounded to the nearest, to even where two are as near
                odd = (sum_bits[c] >> HALF) & LAST
                out[row, t, c] = np.uint16((sum_bits[c] + ALMOST_HALF + odd) >> HALF)
        out[row, length:] = 0


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _taps_gradient(x: Bits, gradient: Bits, lengths: NDArray[np.int64], left: int, out: Floats) -> None:
    """out[k] = sum over rows and t of gradient[row, t] * x[row, t + k - left]."""
    rows, steps, channels = x.shape
    bits, gradient_bits = np.empty((steps, channels), np.uint32), np.empty((steps, channels), np.uint32)
    wide, wide_gradient = bits.view(np.float32), gradient_bits.view(np.float32)
    for row in range(rows):
        length = min(lengths[row], steps)
        _widen(x[row, :length], bits)
        _widen(gradient[row, :length], gradient_bits)
        for t in range(length):
            for k in range(max(0, left - t), min(len(out), length - t + left)):
                for c in range(channels):
                    out[k, c] += wide_gradient[t, c] * wide[t + k - left, c]


class _Taps(torch.autograd.Function):
    """x [rows, steps, channels], weight [channels, 1, taps], lengths in steps."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
        x, lengths = x.contiguous(), lengths.long().contiguous()
        taps = weight.detach()[:, 0].T.float().contiguous()
        out = torch.empty_like(x)
        _slide(_bits(x), taps.numpy(), lengths.numpy(), left, _bits(out))
        context.save_for_backward(x, taps, lengths)
        context.left = left
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, taps, lengths = context.saved_tensors
        gradient = gradients[0].contiguous()
        to_x, to_taps = torch.empty_like(x), torch.zeros_like(taps)
        right = len(taps) - 1 - context.left
        _slide(_bits(gradient), taps.flip(0).numpy(), lengths.numpy(), right, _bits(to_x))
        _taps_gradient(_bits(x), _bits(gradient), lengths.numpy(), context.left, to_taps.numpy())
        return to_x, to_taps.T[:, None].contiguous(), None, None


def depthwise(x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
    """x [rows, channels, steps] in bfloat16 and in the layout of `acoustic.network.parts.by_step`, convolved channel by
    channel with `left` zeros before it and as many after it as keep its length.
    """
    out: Tensor = _Taps.apply(x.mT, weight, lengths, left)  # type: ignore[no-untyped-call]
    return out.mT


def _bits(tensor: Tensor) -> Bits:
    """The same memory."""
    array: Bits = tensor.detach().view(torch.int16).numpy().view(np.uint16)
    return array
