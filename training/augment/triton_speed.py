"""Speed on a GPU, by Triton: every row through the taps of a windowed sine, between whichever samples its speed asks
for. Fourier transforms, with which CPUs do it, want a plan for every length and number of rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

REACH = 24
"""Samples that are heard to each side."""
BLOCK = 512


@triton.jit(do_not_specialize=["samples", "out_samples"])
def _resampled(
    x_at, steps_at, lengths_at, out_at, samples, out_samples, per: tl.constexpr, reach: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """out[row, n] = what x has at n * per / steps[row], of what lies below half of the lower of both rates."""
    row = tl.program_id(0)
    n = tl.program_id(1) * block + tl.arange(0, block)
    step, length = tl.load(steps_at + row), tl.load(lengths_at + row)
    whole = n * per // step
    part = (n * per - whole * step).to(tl.float32) / step.to(tl.float32)
    band = tl.minimum(step.to(tl.float32) / per, 1.0)
    base = x_at + row.to(tl.int64) * samples
    total = tl.zeros((block,), tl.float32)
    pi = 3.141592653589793
    for tap in range(2 * reach):
        place = whole + tap - reach + 1
        apart = (tap - reach + 1) - part
        near = tl.abs(apart) < 1e-5
        safe = tl.where(near, 1.0, apart)
        weight = tl.where(near, band, tl.sin(pi * band * safe) / (pi * safe))
        window = 0.5 + 0.5 * tl.cos(pi * apart / reach)
        heard = tl.load(base + place, mask=(place >= 0) & (place < length), other=0.0)
        total += heard * weight * window
    at = out_at + row.to(tl.int64) * out_samples + n
    # As many samples as begin before the row's end.
    tl.store(at, tl.where(whole < length, total, 0.0), mask=n < out_samples)


def resampled(sound: Tensor, lengths: Tensor, steps: Tensor, out_samples: int, per: int) -> Tensor:
    """Rows [rows, samples] at per / steps[row] times their speed, [rows, out_samples]."""
    out = torch.empty(len(sound), out_samples, device=sound.device)
    grid = (len(sound), triton.cdiv(out_samples, BLOCK))
    _resampled[grid](
        sound.float().contiguous(), steps.to(sound.device, torch.int32), lengths.to(sound.device, torch.int32), out,
        sound.shape[1], out_samples, per=per, reach=REACH, block=BLOCK,
    )  # fmt: skip
    return out.to(sound.dtype)
