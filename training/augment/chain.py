"""The whole chain: which alterations fall on which row, how strongly, in the order in which the world
makes them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.augment.band_limit import band_limit, telephone
from training.augment.codecs import quantize
from training.augment.config import AugmentConfig
from training.augment.level import change_level, mix, random_segments
from training.augment.reverb import reverberate, simulate_rooms
from training.augment.sampling import chosen_rows, integers, normal, quick_length, uniform
from training.augment.speed import change_speed
from training.augment.vtlp import warp_vocal_tract

Pick = Callable[[str, float], Tensor]
"""Name and probability of a part -> the rows (on the sound's device) that it falls on."""


@dataclass(frozen=True)
class Banks:
    """Sound that the chain mixes in: noise as one long row, impulse responses `[responses, samples]`; on
    the device.
    """

    noise: Tensor | None = None
    responses: Tensor | None = None


@dataclass(frozen=True)
class Altered:
    """A batch after the chain; in the rows of `silent` nothing is said any more."""

    sound: Tensor
    lengths: Tensor
    touched: dict[str, int] = field(default_factory=dict)
    silent: tuple[int, ...] = ()


def alter(
    sound: Tensor,
    lengths: Tensor,
    plan: AugmentConfig,
    generator: torch.Generator,
    banks: Banks | None = None,
) -> Altered:
    """Alter a batch `[rows, samples]` in the order of the world: mouth, room, noise, line, level.

    Without a noise bank the noise is white to red; without impulse responses every room is simulated. Each
    part works only on the rows that it falls on.
    """
    banks = banks or Banks()
    rows = len(sound)
    touched: dict[str, int] = {}

    def pick(name: str, probability: float) -> Tensor:
        index = chosen_rows(rows, probability, generator)
        touched[name] = len(index)
        return index.to(sound.device)

    index = pick("vocal_tract", plan.vocal_tract)
    if len(index):
        low, high = (uniform(len(index), *plan.vocal_tract_range, generator) for _ in range(2))
        sound = sound.index_copy(0, index, warp_vocal_tract(sound[index], low, high))
    index = pick("speed", plan.speed)
    if len(index):
        factors = torch.ones(rows, dtype=torch.float64)
        factors[index.cpu()] = uniform(len(index), *plan.speed_range, generator).double().cpu()
        sound, lengths = change_speed(sound, lengths, factors)
    sound = _surround(sound, lengths, plan, generator, banks, pick)
    index = pick("nothing", plan.nothing) if plan.nothing else torch.zeros(0, dtype=torch.long)
    if len(index):
        noise = _noise(len(index), sound, generator, banks)
        power = noise.square().mean(1, keepdim=True).clamp(min=1e-10)
        sound = sound.index_copy(
            0, index, change_level(noise / power.sqrt(), uniform(len(index), *plan.nothing_db, generator))
        )
    sound = _transmit(sound, plan, generator, pick)
    positions = torch.arange(sound.shape[1], device=sound.device)
    inside = positions[None, :] < lengths.to(sound.device)[:, None]
    return Altered(sound * inside, lengths, touched, tuple(index.tolist()))


def _surround(
    sound: Tensor, lengths: Tensor, plan: AugmentConfig, generator: torch.Generator, banks: Banks, pick: Pick
) -> Tensor:
    """What the air adds: another voice, the room, noise."""
    rows = len(sound)
    index = pick("voice", plan.voice if rows > 1 else 0.0)
    if len(index):
        partner = (index + 1 + integers(len(index), rows - 1, generator).to(sound.device)) % rows
        ratio = uniform(len(index), *plan.voice_snr_db, generator)
        mixed = mix(sound[index], lengths.to(sound.device)[index], sound[partner], ratio)
        sound = sound.index_copy(0, index, mixed)
    index = pick("room", plan.room)
    if len(index):
        responses = simulate_rooms(len(index), generator, device=sound.device)
        if banks.responses is not None:
            given = chosen_rows(len(index), plan.given_room_share, generator).to(sound.device)
            chosen = integers(len(given), len(banks.responses), generator).to(banks.responses.device)
            measured = _fit(banks.responses[chosen].to(sound.device), responses.shape[1])
            responses = responses.index_copy(0, given, measured)
        wet = reverberate(sound[index], lengths.to(sound.device)[index], responses)
        sound = sound.index_copy(0, index, wet)
    index = pick("noise", plan.noise)
    if len(index):
        noise = _noise(len(index), sound, generator, banks)
        ratio = uniform(len(index), *plan.noise_snr_db, generator)
        mixed = mix(sound[index], lengths.to(sound.device)[index], noise, ratio)
        sound = sound.index_copy(0, index, mixed)
    return sound


def _noise(rows: int, sound: Tensor, generator: torch.Generator, banks: Banks) -> Tensor:
    """As long as the sound, where the sound is."""
    if banks.noise is None:
        return coloured_noise(rows, sound.shape[1], generator).to(sound.device)
    return random_segments(banks.noise, rows, sound.shape[1], generator).to(sound.device)


def _transmit(sound: Tensor, plan: AugmentConfig, generator: torch.Generator, pick: Pick) -> Tensor:
    """What the line does: level, band, telephone, coarse steps. Level first, because a converter hears the
    level.
    """
    index = pick("level", plan.level)
    if len(index):
        louder = change_level(sound[index], uniform(len(index), *plan.level_db, generator))
        sound = sound.index_copy(0, index, louder.clamp(-1.0, 1.0))
    index = pick("band", plan.band)
    if len(index):
        # A third each: an archive's low-pass at 5.6 kHz, another low-pass, a high-pass with a low-pass.
        kind = integers(len(index), 3, generator)
        high = uniform(len(index), 3000.0, 8000.0, generator)
        high = torch.where(kind == 0, torch.full_like(high, 5600.0), high)
        low = uniform(len(index), 50.0, 300.0, generator) * (kind == 2)
        sound = sound.index_copy(0, index, band_limit(sound[index], low, high))
    index = pick("telephone", plan.telephone)
    if len(index):
        law = "mu" if int(integers(1, 2, generator)) else "a"
        sound = sound.index_copy(0, index, telephone(sound[index], law))
    index = pick("quantize", plan.quantize)
    if len(index):
        bits = uniform(len(index), *plan.quantize_bits, generator).round()
        peak = sound[index].abs().amax(1, keepdim=True).clamp(min=1e-4)
        sound = sound.index_copy(0, index, quantize(sound[index] / peak, bits) * peak)
    return sound


def coloured_noise(rows: int, samples: int, generator: torch.Generator) -> Tensor:
    """Noise between white and red, each row of its own colour."""
    padded = quick_length(samples)
    spectrum = torch.fft.rfft(normal((rows, padded), generator))
    steepness = uniform(rows, 0.0, 1.0, generator)[:, None]
    frequency = torch.arange(1, spectrum.shape[1] + 1, device=spectrum.device)[None, :] / spectrum.shape[1]
    noise: Tensor = torch.fft.irfft(spectrum * frequency.clamp(min=0.005) ** -steepness, n=padded)
    return noise[:, :samples]


def _fit(responses: Tensor, samples: int) -> Tensor:
    """Impulse responses cut or padded to a length."""
    return torch.nn.functional.pad(responses, (0, max(0, samples - responses.shape[1])))[:, :samples]
