"""Depthwise convolution for training in bfloat16 on a CPU, compiled with numba: forward and both gradients.

Each is one pass over memory. PyTorch pads, masks, widens to 32 bits, convolves and narrows in separate passes, which
takes three times as long. Steps beyond a row's length count as zero and are zero in the output; sums are in 32 bits.
Tests compare it with PyTorch's convolution (`acoustic.network.modules`).

numpy has no bfloat16: such arrays are passed as uint16, the upper half of the bits of float32.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]
HALF_WORD = np.uint32(16)
LOWEST_BIT = np.uint32(1)
BELOW_HALF = np.uint32(0x7FFF)
FOUR = 4
BLOCK_STEPS = 64
"""Steps per block: short enough for float32 sums to stay precise and for the block to stay in the cache."""


@numba.njit(cache=True, nogil=True, error_model="numpy")
def to_bfloat16(wide: np.uint32) -> np.uint16:
    """The bits of a float32 as bfloat16, rounded to nearest, ties to even."""
    return np.uint16((wide + BELOW_HALF + ((wide >> HALF_WORD) & LOWEST_BIT)) >> HALF_WORD)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _widen(narrow: Bits, before: int, wide: NDArray[np.uint32]) -> None:
    """bfloat16 to float32 bits, with `before` zero steps in front and zeros after it."""
    steps, channels = narrow.shape
    wide[:before] = 0
    for t in range(steps):
        for c in range(channels):
            wide[before + t, c] = np.uint32(narrow[t, c]) << HALF_WORD
    wide[before + steps :] = 0


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _four_sums(wide: Floats, kernel: Floats, first: int, sums: Floats) -> None:
    """sums[i] = sum over k of kernel[k] * wide[first + i + k] for i = 0..3.

    Four sums and four kernel positions share each loaded value, which is twice as fast as one sum at a time.
    """
    count, channels = kernel.shape
    sums[:] = 0.0
    k = 0
    while k + FOUR <= count:
        for c in range(channels):
            w0, w1, w2, w3 = kernel[k, c], kernel[k + 1, c], kernel[k + 2, c], kernel[k + 3, c]
            at = first + k
            x0, x1, x2, x3 = wide[at, c], wide[at + 1, c], wide[at + 2, c], wide[at + 3, c]
            x4, x5, x6 = wide[at + 4, c], wide[at + 5, c], wide[at + 6, c]
            sums[0, c] += w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
            sums[1, c] += w0 * x1 + w1 * x2 + w2 * x3 + w3 * x4
            sums[2, c] += w0 * x2 + w1 * x3 + w2 * x4 + w3 * x5
            sums[3, c] += w0 * x3 + w1 * x4 + w2 * x5 + w3 * x6
        k += FOUR
    while k < count:
        for c in range(channels):
            for i in range(FOUR):
                sums[i, c] += kernel[k, c] * wide[first + i + k, c]
        k += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _convolve(x: Bits, kernel: Floats, lengths: NDArray[np.int64], left: int, out: Bits) -> None:
    """out[row, t] = sum over k of kernel[k] * x[row, t + k - left]."""
    rows, steps, channels = x.shape
    bits = np.empty((steps + len(kernel) + FOUR, channels), np.uint32)
    wide = bits.view(np.float32)
    sum_bits = np.empty((FOUR, channels), np.uint32)
    sums = sum_bits.view(np.float32)
    for row in range(rows):
        length = min(lengths[row], steps)
        _widen(x[row, :length], left, bits)
        for t in range(0, length, FOUR):
            _four_sums(wide, kernel, t, sums)
            for i in range(min(FOUR, length - t)):
                for c in range(channels):
                    out[row, t + i, c] = to_bfloat16(sum_bits[i, c])
        out[row, length:] = 0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _kernel_gradient(x: Bits, gradient: Bits, lengths: NDArray[np.int64], left: int, out: Floats) -> None:
    """out[k] = sum over rows and t of gradient[row, t] * x[row, t + k - left].

    Computed by `_four_sums` with the gradient as the kernel.
    """
    rows, steps, channels = x.shape
    bits = np.empty((steps + len(out) + 2 * FOUR, channels), np.uint32)
    gradient_bits = np.empty((steps + FOUR, channels), np.uint32)
    wide, wide_gradient = bits.view(np.float32), gradient_bits.view(np.float32)
    sums = np.empty((FOUR, channels), np.float32)
    for row in range(rows):
        length = min(lengths[row], steps)
        _widen(x[row, :length], left, bits)
        _widen(gradient[row, :length], 0, gradient_bits)
        for k in range(0, len(out), FOUR):
            for t in range(0, length, BLOCK_STEPS):
                last = min(t + BLOCK_STEPS, -(-length // FOUR) * FOUR)
                _four_sums(wide[t:], wide_gradient[t:last], k, sums)
                for i in range(min(FOUR, len(out) - k)):
                    out[k + i] += sums[i]


class _Depthwise(torch.autograd.Function):
    """x [rows, steps, channels], weight [channels, 1, kernel size], lengths in steps."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
        x, lengths = x.contiguous(), lengths.long().contiguous()
        kernel = weight.detach()[:, 0].T.float().contiguous()
        out = torch.empty_like(x)
        _convolve(bfloat16_bits(x), kernel.numpy(), lengths.numpy(), left, bfloat16_bits(out))
        context.save_for_backward(x, kernel, lengths)
        context.left = left
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, kernel, lengths = context.saved_tensors
        gradient = gradients[0].contiguous()
        gradient_bits, lengths_array = bfloat16_bits(gradient), lengths.numpy()
        to_x, to_kernel = torch.empty_like(x), torch.zeros_like(kernel)
        right = len(kernel) - 1 - context.left
        _convolve(gradient_bits, kernel.flip(0).numpy(), lengths_array, right, bfloat16_bits(to_x))
        _kernel_gradient(bfloat16_bits(x), gradient_bits, lengths_array, context.left, to_kernel.numpy())
        return to_x, to_kernel.T[:, None].contiguous(), None, None


def depthwise(x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
    """x [rows, channels, steps], bfloat16 and time-major, convolved channel by channel.

    `left` zeros are padded before it, and after it as many as preserve its length.
    """
    out: Tensor = _Depthwise.apply(x.mT, weight, lengths, left)  # type: ignore[no-untyped-call]
    return out.mT


def bfloat16_bits(tensor: Tensor) -> Bits:
    """A bfloat16 tensor as uint16, sharing its memory."""
    array: Bits = tensor.detach().view(torch.int16).numpy().view(np.uint16)
    return array
