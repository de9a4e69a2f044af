"""The whole chain: which alterations fall on which row, how strongly, in the order in which the world
makes them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.augment.band_limit import band_limit, telephone
from training.augment.codecs import bit_crush
from training.augment.config import AugmentConfig
from training.augment.level import apply_gain, mix, random_segments
from training.augment.reverb import reverberate, simulate_rooms
from training.augment.sampling import chosen_rows, integers, normal, quick_length, uniform
from training.augment.speed import change_speed
from training.augment.vtlp import apply_vtlp

Pick = Callable[[str, float], Tensor]
"""Name and probability of a part -> the rows (on the sound's device) that it falls on."""


@dataclass(frozen=True)
class NoiseBanks:
    """Sound that the chain mixes in: noise as one long row, impulse responses `[responses, samples]`; on
    the device.
    """

    noise: Tensor | None = None
    responses: Tensor | None = None


@dataclass(frozen=True)
class AugmentedBatch:
    """A batch after the chain; in the rows of `silent` nothing is said any more."""

    audio: Tensor
    lengths: Tensor
    touched: dict[str, int] = field(default_factory=dict)
    silent: tuple[int, ...] = ()


def augment_batch(
    audio: Tensor,
    lengths: Tensor,
    plan: AugmentConfig,
    generator: torch.Generator,
    banks: NoiseBanks | None = None,
) -> AugmentedBatch:
    """Alter a batch `[rows, samples]` in the order of the world: mouth, room, noise, line, level.

    Without a noise bank the noise is white to red; without impulse responses every room is simulated. Each
    part works only on the rows that it falls on.
    """
    banks = banks or NoiseBanks()
    rows = len(audio)
    touched: dict[str, int] = {}

    def pick(name: str, probability: float) -> Tensor:
        index = chosen_rows(rows, probability, generator)
        touched[name] = len(index)
        return index.to(audio.device)

    index = pick("vtlp", plan.vtlp)
    if len(index):
        low, high = (uniform(len(index), *plan.vtlp_range, generator) for _ in range(2))
        audio = audio.index_copy(0, index, apply_vtlp(audio[index], low, high))
    index = pick("speed", plan.speed)
    if len(index):
        factors = torch.ones(rows, dtype=torch.float64)
        factors[index.cpu()] = uniform(len(index), *plan.speed_range, generator).double().cpu()
        audio, lengths = change_speed(audio, lengths, factors)
    audio = _surround(audio, lengths, plan, generator, banks, pick)
    index = pick("silence", plan.silence) if plan.silence else torch.zeros(0, dtype=torch.long)
    if len(index):
        noise = _noise(len(index), audio, generator, banks)
        power = noise.square().mean(1, keepdim=True).clamp(min=1e-10)
        audio = audio.index_copy(
            0, index, apply_gain(noise / power.sqrt(), uniform(len(index), *plan.silence_db, generator))
        )
    audio = _transmit(audio, plan, generator, pick)
    positions = torch.arange(audio.shape[1], device=audio.device)
    inside = positions[None, :] < lengths.to(audio.device)[:, None]
    return AugmentedBatch(audio * inside, lengths, touched, tuple(index.tolist()))


def _surround(
    audio: Tensor,
    lengths: Tensor,
    plan: AugmentConfig,
    generator: torch.Generator,
    banks: NoiseBanks,
    pick: Pick,
) -> Tensor:
    """What the air adds: another voice, the room, noise."""
    rows = len(audio)
    index = pick("competing_speaker", plan.competing_speaker if rows > 1 else 0.0)
    if len(index):
        partner = (index + 1 + integers(len(index), rows - 1, generator).to(audio.device)) % rows
        ratio = uniform(len(index), *plan.competing_speaker_snr_db, generator)
        mixed = mix(audio[index], lengths.to(audio.device)[index], audio[partner], ratio)
        audio = audio.index_copy(0, index, mixed)
    index = pick("reverb", plan.reverb)
    if len(index):
        responses = simulate_rooms(len(index), generator, device=audio.device)
        if banks.responses is not None:
            given = chosen_rows(len(index), plan.measured_rir_share, generator).to(audio.device)
            chosen = integers(len(given), len(banks.responses), generator).to(banks.responses.device)
            measured = _fit(banks.responses[chosen].to(audio.device), responses.shape[1])
            responses = responses.index_copy(0, given, measured)
        wet = reverberate(audio[index], lengths.to(audio.device)[index], responses)
        audio = audio.index_copy(0, index, wet)
    index = pick("noise", plan.noise)
    if len(index):
        noise = _noise(len(index), audio, generator, banks)
        ratio = uniform(len(index), *plan.noise_snr_db, generator)
        mixed = mix(audio[index], lengths.to(audio.device)[index], noise, ratio)
        audio = audio.index_copy(0, index, mixed)
    return audio


def _noise(rows: int, audio: Tensor, generator: torch.Generator, banks: NoiseBanks) -> Tensor:
    """As long as the sound, where the sound is."""
    if banks.noise is None:
        return colored_noise(rows, audio.shape[1], generator).to(audio.device)
    return random_segments(banks.noise, rows, audio.shape[1], generator).to(audio.device)


def _transmit(audio: Tensor, plan: AugmentConfig, generator: torch.Generator, pick: Pick) -> Tensor:
    """What the line does: level, band, telephone, coarse steps. Level first, because a converter hears the
    level.
    """
    index = pick("level", plan.level)
    if len(index):
        louder = apply_gain(audio[index], uniform(len(index), *plan.level_db, generator))
        audio = audio.index_copy(0, index, louder.clamp(-1.0, 1.0))
    index = pick("band_limit", plan.band_limit)
    if len(index):
        # A third each: an archive's low-pass at 5.6 kHz, another low-pass, a high-pass with a low-pass.
        kind = integers(len(index), 3, generator)
        high = uniform(len(index), 3000.0, 8000.0, generator)
        high = torch.where(kind == 0, torch.full_like(high, 5600.0), high)
        low = uniform(len(index), 50.0, 300.0, generator) * (kind == 2)
        audio = audio.index_copy(0, index, band_limit(audio[index], low, high))
    index = pick("telephone", plan.telephone)
    if len(index):
        law = "mu" if int(integers(1, 2, generator)) else "a"
        audio = audio.index_copy(0, index, telephone(audio[index], law))
    index = pick("bit_crush", plan.bit_crush)
    if len(index):
        bits = uniform(len(index), *plan.bit_crush_bits, generator).round()
        peak = audio[index].abs().amax(1, keepdim=True).clamp(min=1e-4)
        audio = audio.index_copy(0, index, bit_crush(audio[index] / peak, bits) * peak)
    return audio


def colored_noise(rows: int, samples: int, generator: torch.Generator) -> Tensor:
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
