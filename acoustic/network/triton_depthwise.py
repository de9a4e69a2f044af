"""Depthwise convolution for training in bfloat16 on a GPU, in Triton: forward and both gradients.

The same functions as `acoustic.network.depthwise`, which is for CPUs. Tensors are time-major, so that pointwise
convolutions are matrix products. PyTorch's depthwise convolutions require channel-major tensors, and their gradients
take many times as long.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_GROUPS, TILE_CHANNELS = 8, 64
"""Size of a tile: groups of eight steps, channels."""
TILE_STEPS, STRIDED_TILE_STEPS, RUN_STEPS = 8 * TILE_GROUPS, 32, 32
PARTS = 64
"""Partial sums of the kernel gradient. They are stored separately and added in a fixed order, so results repeat."""


@triton.jit(do_not_specialize=["steps", "left", "kernel_size", "first_position", "direction"])
def _convolve(
    x_ptr, kernel_ptr, lengths_ptr, out_ptr, steps, channels, left, kernel_size, first_position, direction,
    groups: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """out[row, t] = sum over k of kernel[first_position + direction * k] * x[row, t + k - left].

    Each loaded value of x serves eight adjacent outputs, while the last eight weights stay in registers.
    """
    tiles = tl.cdiv(steps, 8 * groups)
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    length = tl.minimum(tl.load(lengths_ptr + row), steps).to(tl.int32)
    c = tl.program_id(1) * width + tl.arange(0, width)
    in_range = c < channels
    base = x_ptr + row.to(tl.int64) * steps * channels
    out_base = out_ptr + row.to(tl.int64) * steps * channels
    first = tile * 8 * groups + 8 * tl.arange(0, groups)
    none = tl.zeros((width,), tl.float32)
    w0, w1, w2, w3, w4, w5, w6 = none, none, none, none, none, none, none
    sums = tl.zeros((groups, width), tl.float32)
    s0, s1, s2, s3, s4, s5, s6, s7 = sums, sums, sums, sums, sums, sums, sums, sums
    for begin in range(0, kernel_size + 7, 8):
        for i in tl.static_range(8):
            j = begin + i
            position = first_position + direction * j
            w = tl.load(kernel_ptr + position * channels + c, mask=in_range & (j < kernel_size), other=0.0)
            offset = first + j - left
            valid = (offset >= 0) & (offset < length)
            value = tl.load(
                base + offset[:, None] * channels + c[None, :], mask=valid[:, None] & in_range[None, :], other=0.0
            ).to(tl.float32)  # fmt: skip
            s0 += value * w[None, :]
            s1 += value * w0[None, :]
            s2 += value * w1[None, :]
            s3 += value * w2[None, :]
            s4 += value * w3[None, :]
            s5 += value * w4[None, :]
            s6 += value * w5[None, :]
            s7 += value * w6[None, :]
            w6, w5, w4, w3, w2, w1, w0 = w5, w4, w3, w2, w1, w0, w
    at = out_base + first[:, None] * channels + c[None, :]
    channel_mask = in_range[None, :]
    dtype = out_ptr.dtype.element_ty
    tl.store(
        at,
        tl.where((first < length)[:, None], s0, 0.0).to(dtype),
        mask=channel_mask & (first < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 1 < length)[:, None], s1, 0.0).to(dtype),
        mask=channel_mask & (first + 1 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 2 < length)[:, None], s2, 0.0).to(dtype),
        mask=channel_mask & (first + 2 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 3 < length)[:, None], s3, 0.0).to(dtype),
        mask=channel_mask & (first + 3 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 4 < length)[:, None], s4, 0.0).to(dtype),
        mask=channel_mask & (first + 4 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 5 < length)[:, None], s5, 0.0).to(dtype),
        mask=channel_mask & (first + 5 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 6 < length)[:, None], s6, 0.0).to(dtype),
        mask=channel_mask & (first + 6 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 7 < length)[:, None], s7, 0.0).to(dtype),
        mask=channel_mask & (first + 7 < steps)[:, None],
    )


@triton.jit(do_not_specialize=["steps", "out_steps", "left", "kernel_size", "stride", "dilation"])
def _convolve_strided(
    x_ptr, kernel_ptr, lengths_ptr, out_ptr, steps, out_steps, channels, left, kernel_size, stride, dilation,
    tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """out[row, t] = sum over k of kernel[k] * x[row, t * stride + k * dilation - left]."""
    tiles = tl.cdiv(out_steps, tile)
    row, first = tl.program_id(0) // tiles, (tl.program_id(0) % tiles) * tile
    length = tl.minimum(tl.load(lengths_ptr + row), steps)
    t = first + tl.arange(0, tile)
    c = tl.program_id(1) * width + tl.arange(0, width)
    in_range = c < channels
    total = tl.zeros((tile, width), tl.float32)
    base = x_ptr + row.to(tl.int64) * steps * channels
    for k in range(kernel_size):
        offset = t * stride + k * dilation - left
        valid = (offset >= 0) & (offset < length)
        value = tl.load(
            base + offset[:, None] * channels + c[None, :], mask=valid[:, None] & in_range[None, :], other=0.0
        )
        weight = tl.load(kernel_ptr + k * channels + c, mask=in_range, other=0.0)
        total += value.to(tl.float32) * weight[None, :]
    total = tl.where((t * stride < length)[:, None], total, 0.0)
    kept = (t < out_steps)[:, None] & in_range[None, :]
    offset = out_ptr + row.to(tl.int64) * out_steps * channels + t[:, None] * channels + c[None, :]
    tl.store(offset, total.to(out_ptr.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["steps", "left", "runs", "runs_per_row", "kernel_size"])
def _kernel_gradient(
    x_ptr, gradient_ptr, lengths_ptr, out_ptr, steps, channels, left, runs, runs_per_row, kernel_size,
    groups: tl.constexpr, width: tl.constexpr, run_steps: tl.constexpr,
):  # fmt: skip
    """out[part, k] = sum over the part's runs of `run_steps` steps of gradient[row, t] * x[row, t + k - left].

    A program computes eight kernel positions: the values of x shift from one position to the next with each step.
    """
    part, parts = tl.program_id(2), tl.num_programs(2)
    c = tl.program_id(1) * width + tl.arange(0, width)
    in_range = c < channels
    ahead = tl.program_id(0) * 8 - left
    sums = tl.zeros((groups, width), tl.float32)
    s0, s1, s2, s3, s4, s5, s6, s7 = sums, sums, sums, sums, sums, sums, sums, sums
    for group in range(part, tl.cdiv(runs, groups), parts):
        run = group * groups + tl.arange(0, groups)
        row = run // runs_per_row
        length = tl.minimum(tl.load(lengths_ptr + row, mask=run < runs, other=0), steps).to(tl.int32)
        first = (run % runs_per_row) * run_steps
        base = row.to(tl.int64)[:, None] * steps * channels + c[None, :]
        value = sums * 0.0
        x0, x1, x2, x3, x4, x5, x6 = value, value, value, value, value, value, value
        for i in tl.static_range(7):
            offset = first + ahead + i
            valid = (offset >= 0) & (offset < length)
            value = tl.load(
                x_ptr + base + offset[:, None] * channels, mask=valid[:, None] & in_range[None, :], other=0.0
            ).to(tl.float32)  # fmt: skip
            x0, x1, x2, x3, x4, x5, x6 = x1, x2, x3, x4, x5, x6, value
        for begin in range(0, run_steps, 8):
            for i in tl.static_range(8):
                t = first + begin + i
                gradient = tl.load(
                    gradient_ptr + base + t[:, None] * channels,
                    mask=(t < length)[:, None] & in_range[None, :],
                    other=0.0,
                ).to(tl.float32)
                offset = t + ahead + 7
                valid = (offset >= 0) & (offset < length)
                value = tl.load(
                    x_ptr + base + offset[:, None] * channels, mask=valid[:, None] & in_range[None, :], other=0.0
                ).to(tl.float32)  # fmt: skip
                s0 += gradient * x0
                s1 += gradient * x1
                s2 += gradient * x2
                s3 += gradient * x3
                s4 += gradient * x4
                s5 += gradient * x5
                s6 += gradient * x6
                s7 += gradient * value
                x0, x1, x2, x3, x4, x5, x6 = x1, x2, x3, x4, x5, x6, value
    k = tl.program_id(0) * 8
    at = out_ptr + (part * kernel_size + k) * channels + c
    tl.store(at + 0 * channels, tl.sum(s0, 0), mask=in_range & (k + 0 < kernel_size))
    tl.store(at + 1 * channels, tl.sum(s1, 0), mask=in_range & (k + 1 < kernel_size))
    tl.store(at + 2 * channels, tl.sum(s2, 0), mask=in_range & (k + 2 < kernel_size))
    tl.store(at + 3 * channels, tl.sum(s3, 0), mask=in_range & (k + 3 < kernel_size))
    tl.store(at + 4 * channels, tl.sum(s4, 0), mask=in_range & (k + 4 < kernel_size))
    tl.store(at + 5 * channels, tl.sum(s5, 0), mask=in_range & (k + 5 < kernel_size))
    tl.store(at + 6 * channels, tl.sum(s6, 0), mask=in_range & (k + 6 < kernel_size))
    tl.store(at + 7 * channels, tl.sum(s7, 0), mask=in_range & (k + 7 < kernel_size))


def convolve(
    x: Tensor, kernel: Tensor, lengths: Tensor, left: int, *, stride: int = 1, dilation: int = 1, flipped: bool = False
) -> Tensor:  # fmt: skip
    """x [rows, steps, channels] convolved with a float32 kernel [kernel size, channels], reversed if `flipped`."""
    rows, steps, channels = x.shape
    columns = triton.cdiv(channels, TILE_CHANNELS)
    if stride == dilation == 1:
        out = torch.empty_like(x)
        first_position, direction = (len(kernel) - 1, -1) if flipped else (0, 1)
        _convolve[(rows * triton.cdiv(steps, TILE_STEPS), columns)](
            x, kernel, lengths, out, steps, channels, left, len(kernel), first_position, direction,
            groups=TILE_GROUPS, width=TILE_CHANNELS,
        )  # fmt: skip
        return out
    out_steps = -(-steps // stride)
    out = torch.empty(rows, out_steps, channels, dtype=x.dtype, device=x.device)
    _convolve_strided[(rows * triton.cdiv(out_steps, STRIDED_TILE_STEPS), columns)](
        x, kernel, lengths, out, steps, out_steps, channels, left, len(kernel), stride, dilation,
        tile=STRIDED_TILE_STEPS, width=TILE_CHANNELS,
    )  # fmt: skip
    return out


def kernel_gradient(x: Tensor, gradient: Tensor, lengths: Tensor, left: int, kernel_size: int) -> Tensor:
    """The gradient of the kernel [kernel size, channels], in float32."""
    rows, steps, channels = x.shape
    runs_per_row = triton.cdiv(steps, RUN_STEPS)
    parts = min(PARTS, triton.cdiv(rows * runs_per_row, TILE_GROUPS))
    sums = torch.empty(parts, kernel_size, channels, dtype=torch.float32, device=x.device)
    # Kernel positions vary fastest: they read the same steps, which are then still in the cache.
    grid = (triton.cdiv(kernel_size, 8), triton.cdiv(channels, TILE_CHANNELS), parts)
    _kernel_gradient[grid](
        x, gradient, lengths, sums, steps, channels, left, rows * runs_per_row, runs_per_row, kernel_size,
        groups=TILE_GROUPS, width=TILE_CHANNELS, run_steps=RUN_STEPS,
    )  # fmt: skip
    return sums.sum(0)


class _Depthwise(torch.autograd.Function):
    """x [rows, steps, channels], weight [channels, 1, kernel size], lengths in steps."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
        x = x.contiguous()
        kernel = weight.detach()[:, 0].T.float().contiguous()
        context.save_for_backward(x, kernel, lengths)
        context.left = left
        return convolve(x, kernel, lengths, left)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, kernel, lengths = context.saved_tensors
        gradient = gradients[0].contiguous()
        to_x = convolve(gradient, kernel, lengths, len(kernel) - 1 - context.left, flipped=True)
        to_kernel = kernel_gradient(x, gradient, lengths, context.left, len(kernel))
        return to_x, to_kernel.T[:, None].contiguous(), None, None


def depthwise(
    x: Tensor, weight: Tensor, lengths: Tensor, left: int, stride: int = 1, dilation: int = 1
) -> Tensor:
    """x [rows, channels, steps], time-major, convolved channel by channel with `left` zeros before it.

    With a stride or dilation there is no gradient.
    """
    if stride == dilation == 1:
        out: Tensor = _Depthwise.apply(x.mT, weight, lengths, left)
        return out.mT
    kernel = weight.detach()[:, 0].T.float().contiguous()
    return convolve(x.mT.contiguous(), kernel, lengths, left, stride=stride, dilation=dilation).mT
