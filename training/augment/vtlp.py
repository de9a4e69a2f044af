"""Vocal-tract length: the spectrum stretched or squeezed while the tempo stays."""

import math

import torch
from torch import Tensor

WINDOW_SAMPLES = 512
HOP_SAMPLES = 128
TOP_HZ = 8000.0


def apply_vtlp(audio: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Move every frequency f of row i to f times a factor (0.85 to 1.15): low[i] at the bottom, high[i] at the top,
    between them, along the mel scale, what lies between. By a phase vocoder in the frequency axis. Mouths differ in
    more than length.

    A bin takes the magnitude of the bin at k / factor; its phase runs at the moved frequency (phase
    increments wrapped to their principal value, multiplied by the factor, summed), so that overlapping
    windows still agree.
    """
    window = torch.hann_window(WINDOW_SAMPLES, device=audio.device, dtype=audio.dtype)
    spectrum = torch.stft(
        audio,
        WINDOW_SAMPLES,
        HOP_SAMPLES,
        window=window,
        center=True,
        pad_mode="constant",
        return_complex=True,
    )
    bins = spectrum.shape[1]
    centre = torch.arange(bins, device=audio.device, dtype=audio.dtype)
    places = _mel(torch.linspace(0.0, TOP_HZ, bins, dtype=torch.float64)) / _mel(torch.tensor(TOP_HZ))
    factor = _between(low, high, places).to(audio)
    source = centre[None, :] / factor
    lower = source.floor().clamp(max=bins - 2).long()
    share = (source - lower).clamp(0.0, 1.0)
    inside = (source <= bins - 1).to(audio.dtype)
    magnitude = spectrum.abs()
    phase = torch.angle(spectrum)
    advance = 2 * math.pi * HOP_SAMPLES * centre / WINDOW_SAMPLES
    change = torch.diff(phase, dim=2, prepend=phase[:, :, :1]) - advance[None, :, None]
    true_advance = _principal(change) + advance[None, :, None]

    def pick(values: Tensor, index: Tensor) -> Tensor:
        return torch.gather(values, 1, index[:, :, None].expand(-1, -1, values.shape[2]))

    moved = pick(magnitude, lower) * (1 - share)[:, :, None] + pick(magnitude, lower + 1) * share[:, :, None]
    nearest = torch.where(share < 0.5, lower, lower + 1)
    increments = pick(true_advance, nearest) * factor[:, :, None]
    increments[:, :, 0] = pick(phase[:, :, :1], nearest)[:, :, 0]
    turned = torch.cumsum(_principal(increments), dim=2)
    warped = torch.polar(moved * inside[:, :, None], turned)
    return torch.istft(warped, WINDOW_SAMPLES, HOP_SAMPLES, window=window, center=True, length=audio.shape[1])


def _between(low: Tensor, high: Tensor, places: Tensor) -> Tensor:
    """What lies between two ends [rows] at places between 0 and 1: [rows, places]."""
    lowest, highest = (end.detach().cpu().double()[:, None] for end in (low, high))
    return torch.lerp(lowest, highest, places[None, :])


def _principal(angle: Tensor) -> Tensor:
    """The same angle between minus pi and pi."""
    return angle - 2 * math.pi * torch.round(angle / (2 * math.pi))


def _mel(hertz: Tensor) -> Tensor:
    """Slaney's scale: linear below 1 kHz, logarithmic above."""
    logarithmic = 15.0 + 27.0 * torch.log(hertz.clamp(min=1e-6) / 1000.0) / math.log(6.4)
    return torch.where(hertz < 1000.0, hertz * 3.0 / 200.0, logarithmic)
