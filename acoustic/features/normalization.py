"""How features are brought to mean zero and deviation one: over the utterance, by constants, as heard so far.

`utterance` is what the published networks were trained with, `fixed` needs no memory, `running` approximates
the first in a stream, `causal` is the same for a stream and a whole recording. The memory of the last two is a value
that travels from window to window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.config import FeatureConfig
from acoustic.errors import AcousticError
from acoustic.stream_state import NormalizationState


def initial_normalization_state(config: FeatureConfig) -> NormalizationState | None:
    """What a stream starts from: the prior, or None where normalization needs no memory."""
    if config.normalize not in ("running", "causal"):
        return None
    mean, deviation = _constants(config)
    return NormalizationState(
        float(config.prior_frames),
        mean * config.prior_frames,
        (np.square(deviation) + np.square(mean)) * config.prior_frames,
    )


def normalize_running(
    config: FeatureConfig, features: Tensor, memory: NormalizationState | None, new_frames: slice
) -> tuple[Tensor, NormalizationState]:
    """A window [mels, frames] by everything heard up to its end, and the memory for the next window.

    `new_frames` are those of this window that no earlier window has added: each frame counts once.
    """
    known = memory or initial_normalization_state(config)
    if known is None:
        raise AcousticError(f"`{config.normalize}` normalization has no memory.")
    known = known.add(features[:, new_frames], config.memory_frames)
    if known.frames <= 0:
        return features, known
    mean, deviation = known.mean_and_deviation()
    centre, scale = torch.from_numpy(mean).to(features), torch.from_numpy(deviation).to(features)
    return (features - centre[:, None]) / (scale[:, None] + config.deviation_floor), known


@dataclass(frozen=True)
class StatisticsHistory:
    """What a stream is known by before each frame and after the last: frames [frames + 1], sums and squares of each
    band [2, mels, frames + 1], the prior included."""

    frames: NDArray[np.float64]
    totals: NDArray[np.float64]

    def at(self, frame: int) -> NormalizationState:
        """The memory before that frame."""
        return NormalizationState(float(self.frames[frame]), *self.totals[:, :, frame].copy())


def normalize_causal(
    config: FeatureConfig, features: Tensor, memory: NormalizationState | None
) -> tuple[Tensor, StatisticsHistory]:
    """[mels, frames], each frame by everything up to it. Sums go on from the memory one frame after another: where a
    stream is cut changes no bit of them."""
    known = memory or initial_normalization_state(config)
    if known is None:
        raise AcousticError(f"`{config.normalize}` normalization has no memory.")
    history = _course(config, features.cpu().double().numpy(), known)
    # A full memory is halved after its last frame, which changes no mean.
    mean, square = history.totals[:, :, 1:] / history.frames[1:]
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0)) + config.deviation_floor
    centre, scale = (torch.from_numpy(part).to(features) for part in (mean, deviation))
    return (features - centre) / scale, history


def _course(config: FeatureConfig, features: NDArray[np.float64], known: NormalizationState) -> StatisticsHistory:
    count, limit = features.shape[-1], float(config.memory_frames)
    frames, totals = np.empty(count + 1), np.empty((2, len(features), count + 1))
    frames[0], totals[0, :, 0], totals[1, :, 0] = known.frames, known.sums, known.squares
    values = np.stack([features, np.square(features)])
    at = 0
    while at < count:
        end = min(count, at + max(1, math.ceil(limit - frames[at])))
        frames[at + 1 : end + 1] = frames[at] + np.arange(1.0, end - at + 1)
        before = totals[:, :, at : at + 1]
        totals[:, :, at : end + 1] = np.cumsum(np.concatenate([before, values[:, :, at:end]], -1), axis=-1)
        at = end
        if frames[at] >= limit:
            frames[at] /= 2
            totals[:, :, at] /= 2
    return StatisticsHistory(frames, totals)


def normalize_causal_rows(
    config: FeatureConfig, features: Tensor, memories: Sequence[NormalizationState | None] | None
) -> Tensor:
    """The same of many rows [rows, mels, frames] at once, where they lie: what is in the memory is halved by letting
    what comes later count twice as much."""
    first = initial_normalization_state(config)
    assert first is not None
    known = [memory or first for memory in memories or [None] * len(features)]
    counts = frame_weights(config, [memory.frames for memory in known], features.shape[-1], features.device)
    begun = np.array([[memory.frames, *memory.sums, *memory.squares] for memory in known])
    table, bands = torch.from_numpy(begun).to(features.device), features.shape[1]
    frames, sums, squares = table[:, :1], table[:, 1 : 1 + bands], table[:, 1 + bands :]
    values, weights = features.double(), counts[:, None, :]
    heard = frames[:, :, None] + weights.cumsum(-1)
    mean = (sums[:, :, None] + (values * weights).cumsum(-1)) / heard
    square = (squares[:, :, None] + (values.square() * weights).cumsum(-1)) / heard
    deviation = (square - mean.square()).clamp(min=0.0).sqrt() + config.deviation_floor
    normalized: Tensor = ((values - mean) / deviation).to(features.dtype)
    return normalized


def frame_weights(config: FeatureConfig, begun: Sequence[float], count: int, device: torch.device) -> Tensor:
    """What each frame counts [rows, count] beside rows that begin with so many frames."""
    place = torch.arange(count, device=device)
    halved = torch.tensor(_halvings(config, begun, count)).to(place)
    return torch.exp2((place >= halved[:, :, None]).sum(1).double())


def _halvings(config: FeatureConfig, begun: Sequence[float], count: int) -> list[list[int]]:
    """For each row the frames before which its memory is halved, and `count` in the place of those it has less than
    others."""
    every = []
    for frames in begun:
        at, halved = 0, []
        while at < count:
            heard = max(1, math.ceil(config.memory_frames - frames))
            at, frames = at + heard, (frames + heard) / 2
            halved.append(at)
        every.append(halved)
    longest = max((len(halved) for halved in every), default=0)
    return [[*halved, *[count] * (longest - len(halved))] for halved in every]


def normalize_fixed(config: FeatureConfig, features: Tensor) -> Tensor:
    """[..., mels, frames] by the configuration's constants."""
    mean, deviation = _constants(config)
    centre, scale = torch.from_numpy(mean).to(features), torch.from_numpy(deviation).to(features)
    return (features - centre[:, None]) / (scale[:, None] + config.deviation_floor)


def normalize_utterance(config: FeatureConfig, features: Tensor, lengths: Tensor) -> Tensor:
    """[batch, mels, frames], each item over its own valid frames; beyond them zero. A lone frame is zero."""
    valid = torch.arange(features.shape[-1], device=features.device)[None, :] < lengths[:, None]
    mask = valid[:, None, :].to(features.dtype)
    count = lengths.to(features.dtype).clamp(min=1.0)[:, None, None]
    mean = (features * mask).sum(dim=-1, keepdim=True) / count
    centred = (features - mean) * mask
    variance = centred.square().sum(dim=-1, keepdim=True) / (count - 1).clamp(min=1.0)
    return centred / (variance.sqrt() + config.deviation_floor)


def normalize_batch(
    config: FeatureConfig,
    features: Tensor,
    lengths: Tensor,
    memories: Sequence[NormalizationState | None] | None = None,
) -> Tensor:
    """A batch of finished utterances by the configuration's own rule; beyond each length zero. `memories`: what causal
    normalization knows before each, where that is not nothing."""
    if config.normalize == "utterance":
        return normalize_utterance(config, features, lengths)
    valid = torch.arange(features.shape[-1], device=features.device)[None, :] < lengths[:, None]
    if config.normalize == "fixed":
        return normalize_fixed(config, features) * valid[:, None, :]
    if config.normalize == "causal" and features.device.type != "cpu":
        return normalize_causal_rows(config, features, memories) * valid[:, None, :]
    rows = []
    for index, (item, length) in enumerate(zip(features, lengths.tolist(), strict=True)):
        if config.normalize == "causal":
            rows.append(normalize_causal(config, item, memories[index] if memories else None)[0])
        else:
            rows.append(normalize_running(config, item, None, slice(0, length))[0])
    return torch.stack(rows) * valid[:, None, :] if rows else features


def _constants(config: FeatureConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if config.mean is None or config.deviation is None:
        raise AcousticError(
            f"`{config.normalize}` normalization needs a mean and a deviation for each mel band."
        )
    return np.asarray(config.mean, np.float64), np.asarray(config.deviation, np.float64)
