"""Sound on the training device to normalized features: the front end of acoustic/features/front_end.py over a whole
batch.

The mirroring at each row's own end is done on the device, so that a batch never goes back to the host.
"""

import math
from typing import Any

import torch
from torch import Tensor

from acoustic.config import FeatureConfig
from acoustic.features.front_end import FrontEnd
from acoustic.features.normalization import initial_normalization_state, normalize_whole, weights_of
from acoustic.stream_state import NormalizationState
from training.augment.sampling import integers, random_rows, uniform

MIN_BEFORE = 50
QUIETEST = 8
"""One frame in so many counts as quiet."""
DITHER = 1e-5
"""Deviation of the noise that the published recipes add before the front end, in training only."""


def lined_up(config: FeatureConfig, audio: Tensor, lengths: Tensor) -> Tensor:
    """Padded rows `[rows, samples]` pre-emphasised and mirrored at their own ends, as `log_mels` wants
    them.
    """
    emphasised = torch.cat([audio[:, :1], audio[:, 1:] - config.preemphasis * audio[:, :-1]], dim=1)
    half = config.window_samples // 2
    frames = -(-audio.shape[1] // config.hop_samples)
    position = (
        torch.arange((frames - 1) * config.hop_samples + config.window_samples, device=audio.device) - half
    )
    position = position.abs()[None, :].expand(len(audio), -1)
    last = (lengths.to(audio.device) - 1).clamp(min=0)[:, None]
    beyond = position > last
    if config.edge == "zero":
        outside = torch.arange(position.shape[1], device=audio.device)[None, :] < half
        taken = torch.gather(emphasised, 1, position.clamp(max=audio.shape[1] - 1))
        return taken.masked_fill(beyond | outside, 0.0)
    mirrored = torch.where(beyond, 2 * last - position, position).clamp(0, audio.shape[1] - 1)
    return torch.gather(emphasised, 1, mirrored)


def turned_down(config: FeatureConfig, audio: Tensor) -> Tensor:
    """Rows `[rows, samples]` as `acoustic.features.limiter.Loudness` hands them on, each a stream of its own."""
    if config.max_level_db is None or not audio.shape[1]:
        return audio
    hop, count, loudest = config.hop_samples, audio.shape[1], 10 ** (config.max_level_db / 10)
    blocks = torch.nn.functional.pad(audio, (0, -count % hop)).reshape(len(audio), -1, hop)
    power = blocks.double().square().mean(-1).clamp(max=1.0)
    weights = weights_of(config, [config.prior_frames], power.shape[1], audio.device)
    total = loudest * config.prior_frames + (power * weights).cumsum(1)
    gains = (loudest * (config.prior_frames + weights.cumsum(1)) / total).sqrt().clamp(max=1.0)
    known = torch.cat([gains.new_ones(len(gains), 2), gains], dim=1)
    ramp = torch.arange(1, hop + 1, device=audio.device) / hop
    begin, end = known[:, :-2, None].float(), known[:, 1:-1, None].float()
    turned: Tensor = blocks * (begin + (end - begin) * ramp)
    return turned.flatten(1)[:, :count]


@torch.no_grad()
def batch_features(
    front_end: FrontEnd,
    audio: Tensor,
    lengths: Tensor,
    *,
    dither: float = 0.0,
    generator: torch.Generator | None = None,
    before: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Normalized features `[rows, mels, frames]` and each row's frames. With causal normalization a share `before` of
    the rows comes in a stream that has heard something else before.
    """
    config, drawn = front_end.config, generator
    if dither and generator is not None:
        if generator.device != audio.device:
            # As much noise as sound: drawn where the sound is, from a seed that the generator gives.
            seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
            generator = torch.Generator(audio.device).manual_seed(seed)
        audio = audio + dither * torch.randn(audio.shape, generator=generator, device=audio.device)
    lengths = lengths.to(audio.device)
    frames = -(-lengths // config.hop_samples)
    audio = turned_down(config, audio.float())
    features = front_end.log_mels(lined_up(config, audio, lengths))
    memories = None
    if before and drawn is not None and config.normalize == "causal":
        memories = heard_before(config, features, frames, before, drawn)
    return normalize_whole(config, features, frames, memories), frames


def heard_before(
    config: FeatureConfig, features: Tensor, frames: Tensor, share: float, generator: torch.Generator
) -> list[NormalizationState | None]:
    """What is known of each row's stream before it: for a share of them as if another row of the batch had come, or
    (every other time) nothing but what is quietest in the row itself; for the rest nothing."""
    rows = len(features)
    memories: list[NormalizationState | None] = [None] * rows
    chosen = random_rows(rows, share, generator).tolist()
    others = integers(rows, max(1, rows - 1), generator).tolist()
    lengths = uniform(rows, math.log(MIN_BEFORE), math.log(config.memory_frames), generator).exp().tolist()
    prior = initial_normalization_state(config)
    assert prior is not None
    sources = [row if turn % 2 else (row + 1 + others[row]) % rows for turn, row in enumerate(chosen)]
    own = torch.tensor([turn % 2 == 1 for turn in range(len(chosen))], dtype=torch.bool)
    # All rows at once, and one way back from a GPU.
    means, squares, there = known_of(features, frames, torch.tensor(sources, dtype=torch.long), own)
    for turn, row in enumerate(chosen):
        if not there[turn]:
            continue
        count = min(lengths[row], config.memory_frames - prior.frames - 1)
        memories[row] = NormalizationState(
            prior.frames + count, prior.sums + means[turn] * count, prior.squares + squares[turn] * count
        )
    return memories


def known_of(features: Tensor, frames: Tensor, sources: Tensor, quiet: Tensor) -> Any:
    """Of the rows `sources` each band's mean and mean square, of the `quiet` ones over what is quietest in them alone;
    and which have any frame at all."""
    sources, quiet = sources.to(features.device), quiet.to(features.device)
    heard, counts = features[sources].double(), frames.to(features.device)[sources][:, None]
    place = torch.arange(heard.shape[-1], device=heard.device)[None, :]
    loudness = heard.mean(1).masked_fill(place >= counts, torch.inf)
    taken = loudness.argsort(1).argsort(1) < torch.where(quiet[:, None], -(-counts // QUIETEST), counts)
    heard = heard * taken[:, None, :]
    sums = torch.stack([heard.sum(2), heard.square().sum(2), counts.expand(-1, heard.shape[1])])
    mean, square, there = (sums / taken.sum(1).clamp(min=1)[None, :, None]).cpu().numpy()
    return mean, square, there[:, 0] > 0
