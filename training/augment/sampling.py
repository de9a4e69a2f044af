"""What the alterations share: random numbers (drawn where the generator lives), valid samples, quick lengths."""

import torch
from scipy.fft import next_fast_len
from torch import Tensor


def uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """`count` numbers between low and high, on the generator's device."""
    return low + (high - low) * torch.rand(count, generator=generator, device=generator.device)


def integers(count: int, end: int, generator: torch.Generator) -> Tensor:
    """`count` whole numbers in [0, end), on the generator's device."""
    return torch.randint(max(end, 1), (count,), generator=generator, device=generator.device)


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers of the normal distribution, on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device)


def chosen_rows(count: int, probability: float, generator: torch.Generator) -> Tensor:
    """The rows (indices) that an alteration of this probability falls on."""
    return torch.nonzero(uniform(count, 0.0, 1.0, generator) < probability).flatten()


def valid(lengths: Tensor, samples: int) -> Tensor:
    """True where a row has sound, `[rows, samples]`: beyond its length a row is padding and stays zero."""
    return torch.arange(samples, device=lengths.device)[None, :] < lengths[:, None]


def quick_length(samples: int) -> int:
    """An even length of at least `samples` that the Fourier transform is quick at (2, 3 and 5 its only factors)."""
    return 2 * int(next_fast_len(-(-samples // 2), real=True))
