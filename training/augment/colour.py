"""Colour: how loud a microphone, a room and a mouth make the low bands beside the high ones, the same all through a
recording.
"""

import torch
from torch import Tensor

from training.augment.draw import normal, valid

WAVES = 4
"""Half waves across the bands, one to four of them: a tilt, a bulge and finer."""


def colour(features: Tensor, frames: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    """Log-mel features `[rows, mels, frames]`, each row's bands a little louder or softer along a smooth curve.

    The curve is a sum of half waves; the first deviates by `deviation`, the k-th by a k-th of it (in the features' own
    units: where they are normalised, in deviations of a band).
    """
    rows, mels, width = features.shape
    orders = torch.arange(1, WAVES + 1)
    heights = normal((rows, WAVES), generator).to(features.device) * (deviation / orders).to(features.device)
    places = (torch.arange(mels, device=features.device) + 0.5) / mels
    waves = torch.cos(torch.pi * orders.to(features.device)[:, None] * places[None, :])
    curve = (heights @ waves).to(features.dtype)
    return features + curve[:, :, None] * valid(frames.to(features.device), width)[:, None, :]
