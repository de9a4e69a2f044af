"""Helpers of the transforms: random values on the generator's device, length masks, FFT lengths."""

import torch
from scipy.fft import next_fast_len
from torch import Tensor


def uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """`count` uniform random numbers between low and high."""
    return low + (high - low) * torch.rand(count, generator=generator, device=generator.device)


def integers(count: int, end: int, generator: torch.Generator) -> Tensor:
    """`count` random integers in [0, end)."""
    return torch.randint(max(end, 1), (count,), generator=generator, device=generator.device)


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal random numbers."""
    return torch.randn(shape, generator=generator, device=generator.device)


def random_rows(count: int, probability: float, generator: torch.Generator) -> Tensor:
    """Indices of the rows that are drawn, each with that probability."""
    return torch.nonzero(uniform(count, 0.0, 1.0, generator) < probability).flatten()


def length_mask(lengths: Tensor, samples: int) -> Tensor:
    """`[rows, samples]`, True within the length of each row, False in its padding."""
    return torch.arange(samples, device=lengths.device)[None, :] < lengths[:, None]


def fast_fft_length(samples: int) -> int:
    """An even length of at least `samples` whose only prime factors are 2, 3 and 5."""
    return 2 * int(next_fast_len(-(-samples // 2), real=True))
