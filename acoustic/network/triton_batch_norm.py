"""Batch norm for training in bfloat16 on a GPU, in Triton, with an optional ReLU.

Two passes over memory forward and two backward. The same function as `acoustic.network.batch_norm`, which is for CPUs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TILE_STEPS, TILE_CHANNELS, FINISH_CHANNELS = 32, 64, 16
"""Tile of the passes over all steps; channels of a program that adds up the partial sums."""
PARTS = 264
"""Partial sums per batch: two for each multiprocessor of an H100."""


@triton.jit(do_not_specialize=["steps"])
def _moments(x_ptr, center_ptr, sums_ptr, steps, channels, tile: tl.constexpr, width: tl.constexpr):
    """For each channel the sum of x - center and of its square, over the steps of one part."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * width + tl.arange(0, width)
    in_range = c < channels
    center = tl.load(center_ptr + c, mask=in_range, other=0.0)
    first = tl.zeros((tile, width), tl.float32)
    second = tl.zeros((tile, width), tl.float32)
    for begin in range(part * tile, steps, parts * tile):
        t = begin + tl.arange(0, tile)
        valid = (t < steps)[:, None] & in_range[None, :]
        x = tl.load(x_ptr + t.to(tl.int64)[:, None] * channels + c[None, :], mask=valid, other=0.0)
        centered = tl.where(valid, x.to(tl.float32) - center[None, :], 0.0)
        first += centered
        second += centered * centered
    tl.store(sums_ptr + (2 * part) * channels + c, tl.sum(first, 0), mask=in_range)
    tl.store(sums_ptr + (2 * part + 1) * channels + c, tl.sum(second, 0), mask=in_range)


@triton.jit
def _sum_parts(sums_ptr, parts, channels, c, width: tl.constexpr):
    """Both sums over all parts, 64 parts per memory access."""
    first = tl.zeros((64, width), tl.float32)
    second = tl.zeros((64, width), tl.float32)
    for begin in range(0, parts, 64):
        part = begin + tl.arange(0, 64)
        valid = (part < parts)[:, None] & (c < channels)[None, :]
        pointers = sums_ptr + (2 * part)[:, None] * channels + c[None, :]
        first += tl.load(pointers, mask=valid, other=0.0)
        second += tl.load(pointers + channels, mask=valid, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit(do_not_specialize=["steps", "parts"])
def _finish_statistics(
    sums_ptr, weight_ptr, bias_ptr, running_mean_ptr, running_variance_ptr, statistics_ptr,
    steps, parts, channels, epsilon, momentum, width: tl.constexpr,
):  # fmt: skip
    """Mean, inverse deviation, scale and shift [4, channels] from the partial sums; updates the running statistics."""
    c = tl.program_id(0) * width + tl.arange(0, width)
    in_range = c < channels
    first, second = _sum_parts(sums_ptr, parts, channels, c, width)
    first, second = first / steps, second / steps
    previous = tl.load(running_mean_ptr + c, mask=in_range, other=0.0)  # the center of the moments
    mean = previous + first
    variance = tl.maximum(second - first * first, 0.0)
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    scale = tl.load(weight_ptr + c, mask=in_range, other=0.0) * inverse
    shift = tl.load(bias_ptr + c, mask=in_range, other=0.0) - mean * scale
    tl.store(statistics_ptr + c, mean, mask=in_range)
    tl.store(statistics_ptr + channels + c, inverse, mask=in_range)
    tl.store(statistics_ptr + 2 * channels + c, scale, mask=in_range)
    tl.store(statistics_ptr + 3 * channels + c, shift, mask=in_range)
    tl.store(running_mean_ptr + c, previous + momentum * (mean - previous), mask=in_range)
    previous = tl.load(running_variance_ptr + c, mask=in_range, other=0.0)
    unbiased = variance * (steps / tl.maximum(steps - 1.0, 1.0))
    tl.store(running_variance_ptr + c, previous + momentum * (unbiased - previous), mask=in_range)


@triton.jit(do_not_specialize=["steps"])
def _scale_and_shift(
    x_ptr,
    statistics_ptr,
    out_ptr,
    steps,
    channels,
    relu: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
):
    t = tl.program_id(0) * tile + tl.arange(0, tile)
    c = tl.program_id(1) * width + tl.arange(0, width)
    in_range = c < channels
    scale = tl.load(statistics_ptr + 2 * channels + c, mask=in_range, other=0.0)
    shift = tl.load(statistics_ptr + 3 * channels + c, mask=in_range, other=0.0)
    valid = (t < steps)[:, None] & in_range[None, :]
    offset = t.to(tl.int64)[:, None] * channels + c[None, :]
    out = tl.load(x_ptr + offset, mask=valid, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if relu:
        out = tl.maximum(out, 0.0)
    tl.store(out_ptr + offset, out.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["steps"])
def _gradient_sums(
    x_ptr, gradient_ptr, statistics_ptr, sums_ptr, steps, channels,
    relu: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """For each channel the sum of the gradient (after the ReLU's) and of its product with x - mean."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * width + tl.arange(0, width)
    in_range = c < channels
    mean = tl.load(statistics_ptr + c, mask=in_range, other=0.0)
    scale = tl.load(statistics_ptr + 2 * channels + c, mask=in_range, other=0.0)
    shift = tl.load(statistics_ptr + 3 * channels + c, mask=in_range, other=0.0)
    first = tl.zeros((tile, width), tl.float32)
    second = tl.zeros((tile, width), tl.float32)
    for begin in range(part * tile, steps, parts * tile):
        t = begin + tl.arange(0, tile)
        valid = (t < steps)[:, None] & in_range[None, :]
        offset = t.to(tl.int64)[:, None] * channels + c[None, :]
        x = tl.load(x_ptr + offset, mask=valid, other=0.0).to(tl.float32)
        gradient = tl.load(gradient_ptr + offset, mask=valid, other=0.0).to(tl.float32)
        if relu:
            gradient = tl.where(x * scale[None, :] + shift[None, :] > 0.0, gradient, 0.0)
        first += gradient
        second += gradient * (x - mean[None, :])
    tl.store(sums_ptr + (2 * part) * channels + c, tl.sum(first, 0), mask=in_range)
    tl.store(sums_ptr + (2 * part + 1) * channels + c, tl.sum(second, 0), mask=in_range)


@triton.jit(do_not_specialize=["steps", "parts"])
def _finish_gradient(sums_ptr, statistics_ptr, factors_ptr, steps, parts, channels, width: tl.constexpr):
    """The gradients of weight and bias, and the factors of x and 1 in the input gradient [4, channels]."""
    c = tl.program_id(0) * width + tl.arange(0, width)
    in_range = c < channels
    to_bias, by_difference = _sum_parts(sums_ptr, parts, channels, c, width)
    mean = tl.load(statistics_ptr + c, mask=in_range, other=0.0)
    inverse = tl.load(statistics_ptr + channels + c, mask=in_range, other=0.0)
    scale = tl.load(statistics_ptr + 2 * channels + c, mask=in_range, other=0.0)
    to_weight = by_difference * inverse
    by_x = -scale * inverse * to_weight / steps
    tl.store(factors_ptr + c, to_weight, mask=in_range)
    tl.store(factors_ptr + channels + c, to_bias, mask=in_range)
    tl.store(factors_ptr + 2 * channels + c, by_x, mask=in_range)
    tl.store(factors_ptr + 3 * channels + c, -scale * to_bias / steps - by_x * mean, mask=in_range)


@triton.jit(do_not_specialize=["steps"])
def _input_gradient(
    x_ptr, gradient_ptr, statistics_ptr, factors_ptr, out_ptr, steps, channels,
    relu: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0) * tile + tl.arange(0, tile)
    c = tl.program_id(1) * width + tl.arange(0, width)
    in_range = c < channels
    scale = tl.load(statistics_ptr + 2 * channels + c, mask=in_range, other=0.0)
    shift = tl.load(statistics_ptr + 3 * channels + c, mask=in_range, other=0.0)
    by_x = tl.load(factors_ptr + 2 * channels + c, mask=in_range, other=0.0)
    constant = tl.load(factors_ptr + 3 * channels + c, mask=in_range, other=0.0)
    valid = (t < steps)[:, None] & in_range[None, :]
    offset = t.to(tl.int64)[:, None] * channels + c[None, :]
    x = tl.load(x_ptr + offset, mask=valid, other=0.0).to(tl.float32)
    gradient = tl.load(gradient_ptr + offset, mask=valid, other=0.0).to(tl.float32)
    if relu:
        gradient = tl.where(x * scale[None, :] + shift[None, :] > 0.0, gradient, 0.0)
    out = scale[None, :] * gradient + by_x[None, :] * x + constant[None, :]
    tl.store(out_ptr + offset, out.to(out_ptr.dtype.element_ty), mask=valid)


class _BatchNorm(torch.autograd.Function):
    """x [steps, channels]; `forward` also updates the running mean and variance."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float,
        momentum: float, relu: bool,
    ) -> Tensor:  # fmt: skip
        steps, channels = x.shape
        columns = triton.cdiv(channels, TILE_CHANNELS)
        parts = max(1, min(PARTS, triton.cdiv(steps, TILE_STEPS)))
        sums = x.new_empty(parts, 2, channels, dtype=torch.float32)
        statistics = x.new_empty(4, channels, dtype=torch.float32)
        out = torch.empty_like(x)
        _moments[(parts, columns)](x, mean, sums, steps, channels, tile=TILE_STEPS, width=TILE_CHANNELS)
        _finish_statistics[(triton.cdiv(channels, FINISH_CHANNELS),)](
            sums, weight, bias, mean, variance, statistics, steps, parts, channels, epsilon, momentum,
            width=FINISH_CHANNELS,
        )  # fmt: skip
        grid = (triton.cdiv(steps, TILE_STEPS), columns)
        _scale_and_shift[grid](
            x, statistics, out, steps, channels, relu=relu, tile=TILE_STEPS, width=TILE_CHANNELS
        )
        context.save_for_backward(x, statistics)
        context.relu, context.parts = relu, parts
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics = context.saved_tensors
        gradient, (steps, channels) = gradients[0].contiguous(), x.shape
        columns = triton.cdiv(channels, TILE_CHANNELS)
        sums, factors = statistics.new_empty(context.parts, 2, channels), torch.empty_like(statistics)
        to_x = torch.empty_like(x)
        settings = {"relu": context.relu, "tile": TILE_STEPS, "width": TILE_CHANNELS}
        _gradient_sums[(context.parts, columns)](x, gradient, statistics, sums, steps, channels, **settings)
        _finish_gradient[(triton.cdiv(channels, FINISH_CHANNELS),)](
            sums, statistics, factors, steps, context.parts, channels, width=FINISH_CHANNELS
        )
        _input_gradient[(triton.cdiv(steps, TILE_STEPS), columns)](
            x, gradient, statistics, factors, to_x, steps, channels, **settings
        )
        return to_x, factors[0], factors[1], None, None, None, None, None


def batch_norm(x: Tensor, norm: nn.BatchNorm1d, *, relu: bool) -> Tensor:
    """The training forward pass of `norm` on x [rows, channels, steps], time-major, then ReLU if `relu`."""
    flat = x.mT.reshape(-1, x.shape[1])
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    out: Tensor = _BatchNorm.apply(
        flat, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, norm.momentum, relu
    )
    if norm.num_batches_tracked is not None:
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
    return out.view(x.mT.shape).mT
