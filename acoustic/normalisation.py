"""How features are brought to mean zero and deviation one: over the utterance, by constants, as heard so far.

`utterance` is what the published networks were trained with, `fixed` needs no memory, `running` approximates
the first in a stream: its memory is a value that travels from window to window.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.carried import Memory
from acoustic.errors import AcousticError
from acoustic.shape import FeatureConfig


def first_memory(config: FeatureConfig) -> Memory | None:
    """What a stream starts from: the prior, or None where normalisation needs no memory."""
    if config.normalise != "running":
        return None
    mean, deviation = _constants(config)
    return Memory(
        float(config.prior_frames),
        mean * config.prior_frames,
        (np.square(deviation) + np.square(mean)) * config.prior_frames,
    )


def normalise_running(
    config: FeatureConfig, features: Tensor, memory: Memory | None, new_frames: slice
) -> tuple[Tensor, Memory]:
    """A window [mels, frames] by everything heard up to its end, and the memory for the next window.

    `new_frames` are those of this window that no earlier window has added: each frame counts once.
    """
    known = memory or first_memory(config)
    if known is None:
        raise AcousticError(f"`{config.normalise}` normalisation has no memory.")
    known = known.add(features[:, new_frames], config.memory_frames)
    if known.frames <= 0:
        return features, known
    mean, deviation = known.mean_and_deviation()
    centre, scale = torch.from_numpy(mean).to(features), torch.from_numpy(deviation).to(features)
    return (features - centre[:, None]) / (scale[:, None] + config.deviation_floor), known


def normalise_fixed(config: FeatureConfig, features: Tensor) -> Tensor:
    """[..., mels, frames] by the configuration's constants."""
    mean, deviation = _constants(config)
    centre, scale = torch.from_numpy(mean).to(features), torch.from_numpy(deviation).to(features)
    return (features - centre[:, None]) / (scale[:, None] + config.deviation_floor)


def normalise_utterance(config: FeatureConfig, features: Tensor, lengths: Tensor) -> Tensor:
    """[batch, mels, frames], each item over its own valid frames; beyond them zero. A lone frame is zero."""
    valid = torch.arange(features.shape[-1], device=features.device)[None, :] < lengths[:, None]
    mask = valid[:, None, :].to(features.dtype)
    count = lengths.to(features.dtype).clamp(min=1.0)[:, None, None]
    mean = (features * mask).sum(dim=-1, keepdim=True) / count
    centred = (features - mean) * mask
    variance = centred.square().sum(dim=-1, keepdim=True) / (count - 1).clamp(min=1.0)
    return centred / (variance.sqrt() + config.deviation_floor)


def normalise_whole(config: FeatureConfig, features: Tensor, lengths: Tensor) -> Tensor:
    """A batch of finished utterances by the configuration's own rule; beyond each length zero."""
    if config.normalise == "utterance":
        return normalise_utterance(config, features, lengths)
    valid = torch.arange(features.shape[-1], device=features.device)[None, :] < lengths[:, None]
    if config.normalise == "fixed":
        return normalise_fixed(config, features) * valid[:, None, :]
    rows = []
    for item, length in zip(features, lengths.tolist(), strict=True):
        row, _ = normalise_running(config, item, None, slice(0, length))
        rows.append(row)
    return torch.stack(rows) * valid[:, None, :] if rows else features


def _constants(config: FeatureConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if config.mean is None or config.deviation is None:
        raise AcousticError(
            f"`{config.normalise}` normalisation needs a mean and a deviation for each mel band."
        )
    return np.asarray(config.mean, np.float64), np.asarray(config.deviation, np.float64)
