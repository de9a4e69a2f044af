"""Rooms: impulse responses drawn on the fly, and reverberation by a given or a drawn response."""

import math

import torch
from torch import Tensor

from acoustic.constants import SAMPLE_RATE
from training.augment.sampling import normal, quick_length, uniform, valid

SOUND_M_PER_S = 343.0
IMAGES = 3
"""Mirror images are followed this many times round the room in each direction; the tail beyond is drawn."""


def simulate_rooms(
    rows: int,
    generator: torch.Generator,
    *,
    device: torch.device | str = "cpu",
    seconds: float = 0.6,
    decay_s: tuple[float, float] = (0.1, 0.7),
    side_m: tuple[float, float] = (2.5, 10.0),
    distance_m: tuple[float, float] = (0.3, 4.0),
) -> Tensor:
    """`rows` impulse responses `[rows, samples]` of shoe-box rooms, the direct sound first.

    Early reflections by the image-source method (Allen and Berkley 1979, equation 10, one reflection
    coefficient from Eyring's formula and the drawn decay time), the late tail as noise that decays by 60 dB
    in that time.
    """
    samples = int(seconds * SAMPLE_RATE)
    decay = uniform(rows, *decay_s, generator)
    size = torch.stack(
        [uniform(rows, *side_m, generator) for _ in range(2)] + [uniform(rows, 2.3, 4.0, generator)], 1
    )
    volume = size.prod(1)
    surface = 2 * (size[:, 0] * size[:, 1] + size[:, 0] * size[:, 2] + size[:, 1] * size[:, 2])
    absorption = 1 - torch.exp(-24 * math.log(10) * volume / (SOUND_M_PER_S * surface * decay))
    reflection = torch.sqrt(1 - absorption).clamp(0.0, 0.98)
    ear = size * torch.stack([uniform(rows, 0.2, 0.8, generator) for _ in range(3)], 1)
    direction = normal((rows, 3), generator)
    direction = direction / direction.norm(dim=1, keepdim=True).clamp(min=1e-3)
    mouth = ear + direction * uniform(rows, *distance_m, generator)[:, None]
    mouth = torch.maximum(torch.minimum(mouth, 0.95 * size), 0.05 * size)
    tail = normal((rows, samples), generator)
    size, ear, mouth, reflection, decay, tail = (
        value.to(device, torch.float32) for value in (size, ear, mouth, reflection, decay, tail)
    )
    early, first = _images(size, ear, mouth, reflection, samples)
    time = torch.arange(samples, device=tail.device)[None, :] / SAMPLE_RATE
    late = tail * torch.exp(-3 * math.log(10) * time / decay[:, None])
    # The tail fades in where the images end and has, there, the energy that the images had on average.
    knee_s = (2 * IMAGES * size.min(1).values / SOUND_M_PER_S)[:, None]
    near = (time > 0.5 * knee_s) & (time <= knee_s)
    level = torch.sqrt((early**2 * near).sum(1) / (late**2 * near).sum(1).clamp(min=1e-12))[:, None]
    response = early + late * level * ((time - 0.5 * knee_s) / (0.5 * knee_s)).clamp(0.0, 1.0)
    return response / first[:, None].clamp(min=1e-6)


def _images(
    size: Tensor, ear: Tensor, mouth: Tensor, reflection: Tensor, samples: int
) -> tuple[Tensor, Tensor]:
    """The mirror images' impulses, shifted so that the direct sound is sample 0, and the direct sound's
    strength.
    """
    count = torch.arange(-IMAGES, IMAGES + 1, device=size.device, dtype=size.dtype)
    parity = torch.tensor([0.0, 1.0], device=size.device)
    # Along one axis an image lies at (1 - 2 p) x + 2 n L, after |2 n - p| reflections.
    along = (1 - 2 * parity)[None, None, :, None] * mouth[:, :, None, None]
    along = (along + 2 * count[None, None, None, :] * size[:, :, None, None] - ear[:, :, None, None]).flatten(
        2
    )
    bounces = (2 * count[None, :] - parity[:, None]).abs().flatten()
    x, y, z = along[:, 0], along[:, 1], along[:, 2]
    squared = x[:, :, None, None] ** 2 + y[:, None, :, None] ** 2 + z[:, None, None, :] ** 2
    distance = squared.sqrt().flatten(1).clamp(min=0.05)
    total = (bounces[:, None, None] + bounces[None, :, None] + bounces[None, None, :]).flatten()
    strength = reflection[:, None] ** total[None, :] / distance
    direct = (ear - mouth).norm(dim=1).clamp(min=0.05)
    place = (distance - direct[:, None]).clamp(min=0.0) / SOUND_M_PER_S * SAMPLE_RATE
    lower = place.floor().long()
    share = place - lower
    response = torch.zeros(len(size), samples + 1, device=size.device)
    for index, part in ((lower, 1 - share), (lower + 1, share)):
        response.scatter_add_(1, index.clamp(max=samples), strength * part)
    return response[:, :samples], 1.0 / direct


def reverberate(audio: Tensor, lengths: Tensor, responses: Tensor) -> Tensor:
    """Row i heard through responses[i]; in time with the dry sound (the strongest peak is time zero), as
    loud as it.
    """
    samples = audio.shape[1]
    padded = quick_length(samples + responses.shape[1])
    wet = torch.fft.irfft(
        torch.fft.rfft(audio, n=padded) * torch.fft.rfft(responses.to(audio.device, audio.dtype), n=padded),
        n=padded,
    )
    peak = responses.abs().argmax(1).to(audio.device)
    index = peak[:, None] + torch.arange(samples, device=audio.device)[None, :]
    wet = torch.gather(wet, 1, index) * valid(lengths.to(audio.device), samples)
    power = (audio * audio).sum(1)
    scale = torch.sqrt(power / (wet * wet).sum(1).clamp(min=1e-12))
    return wet * scale[:, None]
