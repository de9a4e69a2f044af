"""Batch norm in training in 16 bits on a GPU, by Triton, with the rectifier that follows it where one does: two passes
over memory forward and two back. The same function as `acoustic.network.batch_norm`, which is for CPUs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TILE, CHANNELS, NARROW = 32, 64, 16
PIECES = 264
"""Parts that the steps of a batch are cut into for their sums, two for each multiprocessor of an H100."""


@triton.jit(do_not_specialize=["steps"])
def _moments(x_at, about_at, sums_at, steps, channels, tile: tl.constexpr, width: tl.constexpr):
    """For each channel the sum of x - about, and of its square, over the steps of one piece."""
    piece, pieces = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    about = tl.load(about_at + c, mask=inside, other=0.0)
    first = tl.zeros((tile, width), tl.float32)
    second = tl.zeros((tile, width), tl.float32)
    for begin in range(piece * tile, steps, pieces * tile):
        t = begin + tl.arange(0, tile)
        known = (t < steps)[:, None] & inside[None, :]
        x = tl.load(x_at + t.to(tl.int64)[:, None] * channels + c[None, :], mask=known, other=0.0)
        apart = tl.where(known, x.to(tl.float32) - about[None, :], 0.0)
        first += apart
        second += apart * apart
    tl.store(sums_at + (2 * piece) * channels + c, tl.sum(first, 0), mask=inside)
    tl.store(sums_at + (2 * piece + 1) * channels + c, tl.sum(second, 0), mask=inside)


@triton.jit
def _summed(sums_at, pieces, channels, c, width: tl.constexpr):
    """Both sums of all pieces; what is looked at together waits for memory but once."""
    first = tl.zeros((64, width), tl.float32)
    second = tl.zeros((64, width), tl.float32)
    for begin in range(0, pieces, 64):
        piece = begin + tl.arange(0, 64)
        known = (piece < pieces)[:, None] & (c < channels)[None, :]
        place = sums_at + (2 * piece)[:, None] * channels + c[None, :]
        first += tl.load(place, mask=known, other=0.0)
        second += tl.load(place + channels, mask=known, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit(do_not_specialize=["steps", "pieces"])
def _settle(
    sums_at, weight_at, bias_at, running_mean_at, running_variance_at, kept_at,
    steps, pieces, channels, epsilon, momentum, width: tl.constexpr,
):  # fmt: skip
    """From the sums of the pieces: mean, inverse deviation, scale and shift [4, channels]; the running ones go on."""
    c = tl.program_id(0) * width + tl.arange(0, width)
    inside = c < channels
    first, second = _summed(sums_at, pieces, channels, c, width)
    first, second = first / steps, second / steps
    known = tl.load(running_mean_at + c, mask=inside, other=0.0)  # what the moments are about
    mean = known + first
    variance = tl.maximum(second - first * first, 0.0)
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    scale = tl.load(weight_at + c, mask=inside, other=0.0) * inverse
    shift = tl.load(bias_at + c, mask=inside, other=0.0) - mean * scale
    tl.store(kept_at + c, mean, mask=inside)
    tl.store(kept_at + channels + c, inverse, mask=inside)
    tl.store(kept_at + 2 * channels + c, scale, mask=inside)
    tl.store(kept_at + 3 * channels + c, shift, mask=inside)
    tl.store(running_mean_at + c, known + momentum * (mean - known), mask=inside)
    known = tl.load(running_variance_at + c, mask=inside, other=0.0)
    unbiased = variance * (steps / tl.maximum(steps - 1.0, 1.0))
    tl.store(running_variance_at + c, known + momentum * (unbiased - known), mask=inside)


@triton.jit(do_not_specialize=["steps"])
def _scaled(
    x_at, kept_at, out_at, steps, channels, rectified: tl.constexpr, tile: tl.constexpr, width: tl.constexpr
):
    t = tl.program_id(0) * tile + tl.arange(0, tile)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    scale = tl.load(kept_at + 2 * channels + c, mask=inside, other=0.0)
    shift = tl.load(kept_at + 3 * channels + c, mask=inside, other=0.0)
    known = (t < steps)[:, None] & inside[None, :]
    place = t.to(tl.int64)[:, None] * channels + c[None, :]
    out = tl.load(x_at + place, mask=known, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if rectified:
        out = tl.maximum(out, 0.0)
    tl.store(out_at + place, out.to(out_at.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["steps"])
def _pulls(
    x_at, gradient_at, kept_at, sums_at, steps, channels,
    rectified: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """For each channel the sum of the gradient, where anything passed, and of its product with x - mean."""
    piece, pieces = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    mean = tl.load(kept_at + c, mask=inside, other=0.0)
    scale = tl.load(kept_at + 2 * channels + c, mask=inside, other=0.0)
    shift = tl.load(kept_at + 3 * channels + c, mask=inside, other=0.0)
    first = tl.zeros((tile, width), tl.float32)
    second = tl.zeros((tile, width), tl.float32)
    for begin in range(piece * tile, steps, pieces * tile):
        t = begin + tl.arange(0, tile)
        known = (t < steps)[:, None] & inside[None, :]
        place = t.to(tl.int64)[:, None] * channels + c[None, :]
        x = tl.load(x_at + place, mask=known, other=0.0).to(tl.float32)
        pull = tl.load(gradient_at + place, mask=known, other=0.0).to(tl.float32)
        if rectified:
            pull = tl.where(x * scale[None, :] + shift[None, :] > 0.0, pull, 0.0)
        first += pull
        second += pull * (x - mean[None, :])
    tl.store(sums_at + (2 * piece) * channels + c, tl.sum(first, 0), mask=inside)
    tl.store(sums_at + (2 * piece + 1) * channels + c, tl.sum(second, 0), mask=inside)


@triton.jit(do_not_specialize=["steps", "pieces"])
def _settle_back(sums_at, kept_at, back_at, steps, pieces, channels, width: tl.constexpr):
    """The gradients of weight and bias, and what x and a constant get of it [4, channels]."""
    c = tl.program_id(0) * width + tl.arange(0, width)
    inside = c < channels
    to_bias, along = _summed(sums_at, pieces, channels, c, width)
    mean = tl.load(kept_at + c, mask=inside, other=0.0)
    inverse = tl.load(kept_at + channels + c, mask=inside, other=0.0)
    scale = tl.load(kept_at + 2 * channels + c, mask=inside, other=0.0)
    to_weight = along * inverse
    by_x = -scale * inverse * to_weight / steps
    tl.store(back_at + c, to_weight, mask=inside)
    tl.store(back_at + channels + c, to_bias, mask=inside)
    tl.store(back_at + 2 * channels + c, by_x, mask=inside)
    tl.store(back_at + 3 * channels + c, -scale * to_bias / steps - by_x * mean, mask=inside)


@triton.jit(do_not_specialize=["steps"])
def _back(
    x_at, gradient_at, kept_at, back_at, out_at, steps, channels,
    rectified: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0) * tile + tl.arange(0, tile)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    scale = tl.load(kept_at + 2 * channels + c, mask=inside, other=0.0)
    shift = tl.load(kept_at + 3 * channels + c, mask=inside, other=0.0)
    by_x = tl.load(back_at + 2 * channels + c, mask=inside, other=0.0)
    constant = tl.load(back_at + 3 * channels + c, mask=inside, other=0.0)
    known = (t < steps)[:, None] & inside[None, :]
    place = t.to(tl.int64)[:, None] * channels + c[None, :]
    x = tl.load(x_at + place, mask=known, other=0.0).to(tl.float32)
    pull = tl.load(gradient_at + place, mask=known, other=0.0).to(tl.float32)
    if rectified:
        pull = tl.where(x * scale[None, :] + shift[None, :] > 0.0, pull, 0.0)
    out = scale[None, :] * pull + by_x[None, :] * x + constant[None, :]
    tl.store(out_at + place, out.to(out_at.dtype.element_ty), mask=known)


class _Normed(torch.autograd.Function):
    """x [steps, channels]; the running mean and variance go on here."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float,
        momentum: float, rectified: bool,
    ) -> Tensor:  # fmt: skip
        steps, channels = x.shape
        columns = triton.cdiv(channels, CHANNELS)
        pieces = max(1, min(PIECES, triton.cdiv(steps, TILE)))
        sums = x.new_empty(pieces, 2, channels, dtype=torch.float32)
        kept = x.new_empty(4, channels, dtype=torch.float32)
        out = torch.empty_like(x)
        _moments[(pieces, columns)](x, mean, sums, steps, channels, tile=TILE, width=CHANNELS)
        _settle[(triton.cdiv(channels, NARROW),)](
            sums, weight, bias, mean, variance, kept, steps, pieces, channels, epsilon, momentum, width=NARROW
        )  # fmt: skip
        grid = (triton.cdiv(steps, TILE), columns)
        _scaled[grid](x, kept, out, steps, channels, rectified=rectified, tile=TILE, width=CHANNELS)
        context.save_for_backward(x, kept)
        context.rectified, context.pieces = rectified, pieces
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, kept = context.saved_tensors
        gradient, (steps, channels) = gradients[0].contiguous(), x.shape
        columns = triton.cdiv(channels, CHANNELS)
        sums, back = kept.new_empty(context.pieces, 2, channels), torch.empty_like(kept)
        to_x = torch.empty_like(x)
        settings = {"rectified": context.rectified, "tile": TILE, "width": CHANNELS}
        _pulls[(context.pieces, columns)](x, gradient, kept, sums, steps, channels, **settings)
        _settle_back[(triton.cdiv(channels, NARROW),)](
            sums, kept, back, steps, context.pieces, channels, width=NARROW
        )
        _back[(triton.cdiv(steps, TILE), columns)](x, gradient, kept, back, to_x, steps, channels, **settings)
        return to_x, back[0], back[1], None, None, None, None, None


def batch_normed(x: Tensor, norm: nn.BatchNorm1d, *, rectified: bool) -> Tensor:
    """x [rows, channels, steps] in the layout of `acoustic.network.modules.by_step` as `norm` in training makes it, and
    what of it is above nought where it is `rectified`."""
    flat = x.mT.reshape(-1, x.shape[1])
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    out: Tensor = _Normed.apply(
        flat, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, norm.momentum, rectified
    )
    if norm.num_batches_tracked is not None:
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
    return out.view(x.mT.shape).mT
