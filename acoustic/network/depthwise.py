"""Depthwise taps in training in 16 bits on a CPU, compiled: forward and both gradients in one pass each over memory.

PyTorch pads, masks, widens to 32 bits, convolves and narrows again, each time through all of the memory, which takes
three times as long. Here what lies beyond a row's length counts as zero and comes out as zero, and sums are in 32 bits.
PyTorch's own way (`acoustic.network.modules`) is what tests hold this against.

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
FOUR = 4
LONG = 64
"""Steps whose sums are added up before others': what they are made of stays near."""


@numba.njit(cache=True, nogil=True, error_model="numpy")
def narrowed(wide: np.uint32) -> np.uint16:
    """The bits of a 32-bit number in 16: rounded to the nearest, to even where two are as near."""
    return np.uint16((wide + ALMOST_HALF + ((wide >> HALF) & LAST)) >> HALF)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _widen(narrow: Bits, before: int, wide: NDArray[np.uint32]) -> None:
    """With zeros before and after it."""
    steps, channels = narrow.shape
    wide[:before] = 0
    for t in range(steps):
        for c in range(channels):
            wide[before + t, c] = np.uint32(narrow[t, c]) << HALF
    wide[before + steps :] = 0


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _four_sums(wide: Floats, taps: Floats, first: int, sums: Floats) -> None:
    """sums[i] = sum over k of taps[k] * wide[first + i + k] for four i: what is loaded serves four sums, four taps at a
    time, which is twice as quick as one by one."""
    count, channels = taps.shape
    sums[:] = 0.0
    k = 0
    while k + FOUR <= count:
        for c in range(channels):
            w0, w1, w2, w3 = taps[k, c], taps[k + 1, c], taps[k + 2, c], taps[k + 3, c]
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
                sums[i, c] += taps[k, c] * wide[first + i + k, c]
        k += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _slide(x: Bits, taps: Floats, lengths: NDArray[np.int64], left: int, out: Bits) -> None:
    """out[row, t] = sum over k of taps[k] * x[row, t + k - left]."""
    rows, steps, channels = x.shape
    bits = np.empty((steps + len(taps) + FOUR, channels), np.uint32)
    wide = bits.view(np.float32)
    sum_bits = np.empty((FOUR, channels), np.uint32)
    sums = sum_bits.view(np.float32)
    for row in range(rows):
        length = min(lengths[row], steps)
        _widen(x[row, :length], left, bits)
        for t in range(0, length, FOUR):
            _four_sums(wide, taps, t, sums)
            for i in range(min(FOUR, length - t)):
                for c in range(channels):
                    out[row, t + i, c] = narrowed(sum_bits[i, c])
        out[row, length:] = 0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _taps_gradient(x: Bits, gradient: Bits, lengths: NDArray[np.int64], left: int, out: Floats) -> None:
    """out[k] = sum over rows and t of gradient[row, t] * x[row, t + k - left]: four sums at a time again, of `x` with
    the gradient as the taps."""
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
            for t in range(0, length, LONG):
                last = min(t + LONG, -(-length // FOUR) * FOUR)
                _four_sums(wide[t:], wide_gradient[t:last], k, sums)
                for i in range(min(FOUR, len(out) - k)):
                    out[k + i] += sums[i]


class _Taps(torch.autograd.Function):
    """x [rows, steps, channels], weight [channels, 1, taps], lengths in steps."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
        x, lengths = x.contiguous(), lengths.long().contiguous()
        taps = weight.detach()[:, 0].T.float().contiguous()
        out = torch.empty_like(x)
        _slide(bits_of(x), taps.numpy(), lengths.numpy(), left, bits_of(out))
        context.save_for_backward(x, taps, lengths)
        context.left = left
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, taps, lengths = context.saved_tensors
        gradient = gradients[0].contiguous()
        to_x, to_taps = torch.empty_like(x), torch.zeros_like(taps)
        right = len(taps) - 1 - context.left
        _slide(bits_of(gradient), taps.flip(0).numpy(), lengths.numpy(), right, bits_of(to_x))
        _taps_gradient(bits_of(x), bits_of(gradient), lengths.numpy(), context.left, to_taps.numpy())
        return to_x, to_taps.T[:, None].contiguous(), None, None


def depthwise(x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
    """x [rows, channels, steps] in bfloat16 and in the layout of `acoustic.network.modules.by_step`, convolved
    channel by
    channel with `left` zeros before it and as many after it as keep its length.
    """
    out: Tensor = _Taps.apply(x.mT, weight, lengths, left)  # type: ignore[no-untyped-call]
    return out.mT


def bits_of(tensor: Tensor) -> Bits:
    """The same memory."""
    array: Bits = tensor.detach().view(torch.int16).numpy().view(np.uint16)
    return array
