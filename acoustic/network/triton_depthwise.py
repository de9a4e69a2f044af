"""Depthwise taps in training in 16 bits on a GPU, by Triton: the same function as `acoustic.network.depthwise`,
which is for
CPUs. The channels of a step lie side by side, so that whatever mixes channels is one product of matrices; PyTorch's own
depthwise convolutions want another order, and their gradients take many times as long.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PLACES, CHANNELS = 8, 64
"""Of a tile: so many places of eight steps each."""
STEPS, FEWER_STEPS, LONG = 8 * PLACES, 32, 32
PIECES = 64
"""Parts that the tiles of a batch are cut into for the gradient of the taps; each part's sum is kept by itself, so that
two runs are one."""


@triton.jit(do_not_specialize=["steps", "left", "taps", "begin_tap", "by"])
def _slide(
    x_at, taps_at, lengths_at, out_at, steps, channels, left, taps, begin_tap, by,
    places: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """out[row, t] = sum over k of taps[begin_tap + by * k] * x[row, t + k - left]. Eight outputs side by side hear
    nearly the same: what is loaded once serves all of them, while the taps go by."""
    tiles = tl.cdiv(steps, 8 * places)
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    length = tl.minimum(tl.load(lengths_at + row), steps).to(tl.int32)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    base = x_at + row.to(tl.int64) * steps * channels
    out_base = out_at + row.to(tl.int64) * steps * channels
    first = tile * 8 * places + 8 * tl.arange(0, places)
    none = tl.zeros((width,), tl.float32)
    w0, w1, w2, w3, w4, w5, w6 = none, none, none, none, none, none, none
    sums = tl.zeros((places, width), tl.float32)
    s0, s1, s2, s3, s4, s5, s6, s7 = sums, sums, sums, sums, sums, sums, sums, sums
    for begin in range(0, taps + 7, 8):
        for turn in tl.static_range(8):
            j = begin + turn
            w = tl.load(taps_at + (begin_tap + by * j) * channels + c, mask=inside & (j < taps), other=0.0)
            place = first + j - left
            there = (place >= 0) & (place < length)
            heard = tl.load(
                base + place[:, None] * channels + c[None, :], mask=there[:, None] & inside[None, :], other=0.0
            ).to(tl.float32)  # fmt: skip
            s0 += heard * w[None, :]
            s1 += heard * w0[None, :]
            s2 += heard * w1[None, :]
            s3 += heard * w2[None, :]
            s4 += heard * w3[None, :]
            s5 += heard * w4[None, :]
            s6 += heard * w5[None, :]
            s7 += heard * w6[None, :]
            w6, w5, w4, w3, w2, w1, w0 = w5, w4, w3, w2, w1, w0, w
    at = out_base + first[:, None] * channels + c[None, :]
    shown = inside[None, :]
    dtype = out_at.dtype.element_ty
    tl.store(
        at, tl.where((first < length)[:, None], s0, 0.0).to(dtype), mask=shown & (first < steps)[:, None]
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 1 < length)[:, None], s1, 0.0).to(dtype),
        mask=shown & (first + 1 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 2 < length)[:, None], s2, 0.0).to(dtype),
        mask=shown & (first + 2 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 3 < length)[:, None], s3, 0.0).to(dtype),
        mask=shown & (first + 3 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 4 < length)[:, None], s4, 0.0).to(dtype),
        mask=shown & (first + 4 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 5 < length)[:, None], s5, 0.0).to(dtype),
        mask=shown & (first + 5 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 6 < length)[:, None], s6, 0.0).to(dtype),
        mask=shown & (first + 6 < steps)[:, None],
    )
    at += channels
    tl.store(
        at,
        tl.where((first + 7 < length)[:, None], s7, 0.0).to(dtype),
        mask=shown & (first + 7 < steps)[:, None],
    )


@triton.jit(do_not_specialize=["steps", "out_steps", "left", "taps", "stride", "dilation"])
def _strided(
    x_at, taps_at, lengths_at, out_at, steps, out_steps, channels, left, taps, stride, dilation,
    tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """out[row, t] = sum over k of taps[k] * x[row, t * stride + k * dilation - left]."""
    tiles = tl.cdiv(out_steps, tile)
    row, first = tl.program_id(0) // tiles, (tl.program_id(0) % tiles) * tile
    length = tl.minimum(tl.load(lengths_at + row), steps)
    t = first + tl.arange(0, tile)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    total = tl.zeros((tile, width), tl.float32)
    base = x_at + row.to(tl.int64) * steps * channels
    for k in range(taps):
        place = t * stride + k * dilation - left
        there = (place >= 0) & (place < length)
        heard = tl.load(
            base + place[:, None] * channels + c[None, :], mask=there[:, None] & inside[None, :], other=0.0
        )
        tap = tl.load(taps_at + k * channels + c, mask=inside, other=0.0)
        total += heard.to(tl.float32) * tap[None, :]
    total = tl.where((t * stride < length)[:, None], total, 0.0)
    kept = (t < out_steps)[:, None] & inside[None, :]
    place = out_at + row.to(tl.int64) * out_steps * channels + t[:, None] * channels + c[None, :]
    tl.store(place, total.to(out_at.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["steps", "left", "runs", "runs_a_row", "taps"])
def _taps_gradient(
    x_at, gradient_at, lengths_at, out_at, steps, channels, left, runs, runs_a_row, taps,
    places: tl.constexpr, width: tl.constexpr, long: tl.constexpr,
):  # fmt: skip
    """out[piece, k] = sum over the piece's runs of `long` steps of gradient[row, t] * x[row, t + k - left], for eight
    taps: what each hears of a step, the next one hears of the step before."""
    piece, pieces = tl.program_id(2), tl.num_programs(2)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    ahead = tl.program_id(0) * 8 - left
    sums = tl.zeros((places, width), tl.float32)
    s0, s1, s2, s3, s4, s5, s6, s7 = sums, sums, sums, sums, sums, sums, sums, sums
    for group in range(piece, tl.cdiv(runs, places), pieces):
        run = group * places + tl.arange(0, places)
        row = run // runs_a_row
        length = tl.minimum(tl.load(lengths_at + row, mask=run < runs, other=0), steps).to(tl.int32)
        first = (run % runs_a_row) * long
        base = row.to(tl.int64)[:, None] * steps * channels + c[None, :]
        heard = sums * 0.0
        x0, x1, x2, x3, x4, x5, x6 = heard, heard, heard, heard, heard, heard, heard
        for turn in tl.static_range(7):
            place = first + ahead + turn
            there = (place >= 0) & (place < length)
            heard = tl.load(
                x_at + base + place[:, None] * channels, mask=there[:, None] & inside[None, :], other=0.0
            ).to(tl.float32)  # fmt: skip
            x0, x1, x2, x3, x4, x5, x6 = x1, x2, x3, x4, x5, x6, heard
        for begin in range(0, long, 8):
            for turn in tl.static_range(8):
                t = first + begin + turn
                pull = tl.load(
                    gradient_at + base + t[:, None] * channels,
                    mask=(t < length)[:, None] & inside[None, :],
                    other=0.0,
                ).to(tl.float32)
                place = t + ahead + 7
                there = (place >= 0) & (place < length)
                heard = tl.load(
                    x_at + base + place[:, None] * channels, mask=there[:, None] & inside[None, :], other=0.0
                ).to(tl.float32)  # fmt: skip
                s0 += pull * x0
                s1 += pull * x1
                s2 += pull * x2
                s3 += pull * x3
                s4 += pull * x4
                s5 += pull * x5
                s6 += pull * x6
                s7 += pull * heard
                x0, x1, x2, x3, x4, x5, x6 = x1, x2, x3, x4, x5, x6, heard
    k = tl.program_id(0) * 8
    at = out_at + (piece * taps + k) * channels + c
    tl.store(at + 0 * channels, tl.sum(s0, 0), mask=inside & (k + 0 < taps))
    tl.store(at + 1 * channels, tl.sum(s1, 0), mask=inside & (k + 1 < taps))
    tl.store(at + 2 * channels, tl.sum(s2, 0), mask=inside & (k + 2 < taps))
    tl.store(at + 3 * channels, tl.sum(s3, 0), mask=inside & (k + 3 < taps))
    tl.store(at + 4 * channels, tl.sum(s4, 0), mask=inside & (k + 4 < taps))
    tl.store(at + 5 * channels, tl.sum(s5, 0), mask=inside & (k + 5 < taps))
    tl.store(at + 6 * channels, tl.sum(s6, 0), mask=inside & (k + 6 < taps))
    tl.store(at + 7 * channels, tl.sum(s7, 0), mask=inside & (k + 7 < taps))


def slide(
    x: Tensor, taps: Tensor, lengths: Tensor, left: int, *, stride: int = 1, dilation: int = 1, flipped: bool = False
) -> Tensor:  # fmt: skip
    """x [rows, steps, channels] by taps [taps, channels] in 32 bits."""
    rows, steps, channels = x.shape
    columns = triton.cdiv(channels, CHANNELS)
    if stride == dilation == 1:
        out = torch.empty_like(x)
        begin, by = (len(taps) - 1, -1) if flipped else (0, 1)
        _slide[(rows * triton.cdiv(steps, STEPS), columns)](
            x, taps, lengths, out, steps, channels, left, len(taps), begin, by, places=PLACES, width=CHANNELS
        )
        return out
    out_steps = -(-steps // stride)
    out = torch.empty(rows, out_steps, channels, dtype=x.dtype, device=x.device)
    _strided[(rows * triton.cdiv(out_steps, FEWER_STEPS), columns)](
        x, taps, lengths, out, steps, out_steps, channels, left, len(taps), stride, dilation,
        tile=FEWER_STEPS, width=CHANNELS,
    )  # fmt: skip
    return out


def taps_gradient(x: Tensor, gradient: Tensor, lengths: Tensor, left: int, taps: int) -> Tensor:
    """Of taps [taps, channels], in 32 bits."""
    rows, steps, channels = x.shape
    runs_a_row = triton.cdiv(steps, LONG)
    pieces = min(PIECES, triton.cdiv(rows * runs_a_row, PLACES))
    sums = torch.empty(pieces, taps, channels, dtype=torch.float32, device=x.device)
    # What is near in memory is near in time: taps first, which hear the same.
    grid = (triton.cdiv(taps, 8), triton.cdiv(channels, CHANNELS), pieces)
    _taps_gradient[grid](
        x, gradient, lengths, sums, steps, channels, left, rows * runs_a_row, runs_a_row, taps,
        places=PLACES, width=CHANNELS, long=LONG,
    )  # fmt: skip
    return sums.sum(0)


class _Taps(torch.autograd.Function):
    """x [rows, steps, channels], weight [channels, 1, taps], lengths in steps."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, lengths: Tensor, left: int) -> Tensor:
        x = x.contiguous()
        taps = weight.detach()[:, 0].T.float().contiguous()
        context.save_for_backward(x, taps, lengths)
        context.left = left
        return slide(x, taps, lengths, left)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, taps, lengths = context.saved_tensors
        gradient = gradients[0].contiguous()
        to_x = slide(gradient, taps, lengths, len(taps) - 1 - context.left, flipped=True)
        to_taps = taps_gradient(x, gradient, lengths, context.left, len(taps))
        return to_x, to_taps.T[:, None].contiguous(), None, None


def depthwise(
    x: Tensor, weight: Tensor, lengths: Tensor, left: int, stride: int = 1, dilation: int = 1
) -> Tensor:
    """x [rows, channels, steps] in the layout of `acoustic.network.modules.by_step`, convolved channel by channel with
    `left` zeros before it; strides and dilations for whoever wants no gradient.
    """
    if stride == dilation == 1:
        out: Tensor = _Taps.apply(x.mT, weight, lengths, left)
        return out.mT
    taps = weight.detach()[:, 0].T.float().contiguous()
    return slide(x.mT.contiguous(), taps, lengths, left, stride=stride, dilation=dilation).mT
