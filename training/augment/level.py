"""Level, noise and other voices: one sound scaled, or added to another at a given ratio."""

import torch
from torch import Tensor

from training.augment.sampling import integers, valid

QUIET_POWER = 1e-10
"""Power below which a row counts as silence: nothing is scaled against it."""


def apply_gain(audio: Tensor, decibels: Tensor) -> Tensor:
    """Row i louder by decibels[i]."""
    return audio * torch.pow(10.0, decibels.to(audio.device, audio.dtype) / 20.0)[:, None]


def mix(audio: Tensor, lengths: Tensor, other: Tensor, snr_db: Tensor) -> Tensor:
    """Add `other` (same shape) to `audio` so that row i has the ratio snr_db[i] of mean powers over its
    length.

    A silent row, or a silent disturber, leaves the row as it is: there is no ratio to keep.
    """
    inside = valid(lengths.to(audio.device), audio.shape[1])
    count = inside.sum(1).clamp(min=1)
    other = other * inside
    power = (audio * audio * inside).sum(1) / count
    disturber = (other * other).sum(1) / count
    ratio = torch.pow(10.0, -snr_db.to(audio.device, audio.dtype) / 10.0)
    scale = torch.sqrt(power * ratio / disturber.clamp(min=QUIET_POWER))
    usable = (power > QUIET_POWER) & (disturber > QUIET_POWER)
    return audio + other * torch.where(usable, scale, torch.zeros_like(scale))[:, None]


def random_segments(bank: Tensor, rows: int, samples: int, generator: torch.Generator) -> Tensor:
    """`rows` stretches of `samples` from a bank (one long row of sound), each from a random place, round
    the end.
    """
    if bank.numel() == 0:
        raise ValueError("the noise bank is empty: give it at least one second of sound")
    start = integers(rows, bank.numel(), generator).to(bank.device)
    index = (start[:, None] + torch.arange(samples, device=bank.device)[None, :]) % bank.numel()
    return bank.flatten()[index].float()
