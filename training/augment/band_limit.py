"""Band limits: what a telephone, a cheap microphone or a lossy archive leaves of a sound."""

import torch
from torch import Tensor

from acoustic.constants import SAMPLE_RATE
from training.augment.codecs import a_law, mu_law
from training.augment.sampling import quick_length

EDGE_SHARE = 0.08
"""Width of a band's soft edge as a share of its frequency."""


def band_limit(audio: Tensor, low_hz: Tensor, high_hz: Tensor) -> Tensor:
    """Keep low_hz[i] to high_hz[i] of row i, with raised-cosine edges outside the band; 0 and 8000 switch
    an edge off.
    """
    samples = audio.shape[1]
    padded = quick_length(samples + 256)
    spectrum = torch.fft.rfft(audio, n=padded)
    hertz = torch.linspace(0.0, SAMPLE_RATE / 2, spectrum.shape[1], device=audio.device, dtype=audio.dtype)[
        None, :
    ]
    low = low_hz.to(audio.device, audio.dtype)[:, None]
    high = high_hz.to(audio.device, audio.dtype)[:, None]
    rise = ((hertz - low * (1 - EDGE_SHARE)) / (low * EDGE_SHARE).clamp(min=1.0)).clamp(0.0, 1.0)
    fall = ((high * (1 + EDGE_SHARE) - hertz) / (high * EDGE_SHARE).clamp(min=1.0)).clamp(0.0, 1.0)
    rise = torch.where(low > 0, rise, torch.ones_like(rise))
    fall = torch.where(high < SAMPLE_RATE / 2, fall, torch.ones_like(fall))
    gain = torch.sin(rise * torch.pi / 2) ** 2 * torch.sin(fall * torch.pi / 2) ** 2
    limited: Tensor = torch.fft.irfft(spectrum * gain, n=padded)[:, :samples]
    return limited


def telephone(audio: Tensor, law: str = "mu") -> Tensor:
    """A telephone line: 300 to 3400 Hz, 8 kHz, eight bits of mu-law or A-law, and back to 16 kHz."""
    rows, samples = audio.shape
    limits = torch.ones(rows)
    narrow = band_limit(audio, 300.0 * limits, 3400.0 * limits)[:, ::2]
    coded = mu_law(narrow) if law == "mu" else a_law(narrow)
    padded = quick_length(coded.shape[1] + 256)
    spectrum = torch.fft.rfft(coded, n=padded)
    wide: Tensor = (
        torch.fft.irfft(torch.nn.functional.pad(spectrum, (0, padded - padded // 2)), n=2 * padded) * 2.0
    )
    return wide[:, :samples]
