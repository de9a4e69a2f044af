"""What streams remember between windows, as the rows of a batch on the GPU: normalization, carried state.

The memory of normalization comes from the windows of a run and goes back to them as a plain value
(`NormalizationState`). A carried
state stays on the device: what travels with the windows (`StreamState`) only holds it there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.config import FeatureConfig
from acoustic.features.normalization import initial_normalization_state
from acoustic.runtime.backend import causal_state, constants, running_state, stream_state_of
from acoustic.stream_state import NormalizationState, StreamState
from acoustic.windows import Window


class StagedTensor:
    """Rows of numbers that the host writes and one copy brings to the device before a run."""

    def __init__(self, *shape: int, kind: torch.dtype, device: torch.device) -> None:
        self._host = torch.zeros(*shape, dtype=kind, pin_memory=device.type == "cuda")
        self.rows = self._host.numpy()
        self.tensor = self._host.to(device)

    def send(self, count: int) -> None:
        """The first rows. Nobody waits: what was sent is safe once the results of the run are there."""
        self.tensor[:count].copy_(self._host[:count], non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Copies of what lies on the device, all with one wait for it."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]


class BatchedNormalization:
    """Normalization of [batch, mels, frames] by each row's own rule, as `acoustic.features.normalization` does it
    for one. What
    a row remembers is `numbers` of 64 bits: frames, the sum of each band, that of its squares (none: nothing)."""

    def __init__(self, config: FeatureConfig, device: torch.device) -> None:
        self.config = config
        self._first = initial_normalization_state(config)
        self.numbers = 1 + 2 * config.mels if self._first else 0
        # Made before any graph: while one is captured nothing may come from the host.
        self._fixed = None if self._first else tuple(part.to(device) for part in constants(config))

    def memory(self, window: Window) -> NDArray[np.float64]:
        """What the stream of this window has shown before, as a row."""
        known = causal_state(window) if self.config.normalize == "causal" else running_state(window)
        known = known or self._first
        assert known is not None
        return np.concatenate([[known.frames], known.sums, known.squares])

    def memories(self, rows: NDArray[np.float64]) -> list[NormalizationState]:
        """The same the other way round."""
        bands = self.config.mels + 1
        return [NormalizationState(float(row[0]), row[1:bands].copy(), row[bands:].copy()) for row in rows]

    def __call__(
        self, features: Tensor, lengths: Tensor, places: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Normalized features, and what is remembered afterwards. `places`, in running normalization: the first frame
        that counts; in causal normalization: that of the next window."""
        config = self.config
        positions = torch.arange(features.shape[-1], device=features.device)[None, :]
        valid = positions < lengths[:, None]
        if self._fixed is not None or known is None:
            assert self._fixed is not None
            mean, deviation = self._fixed
            return (features - mean) / (deviation + config.deviation_floor) * valid[:, None, :], None
        exact = features.to(torch.float64)
        if config.normalize == "causal":
            normalized, following = _normalize_causal(config, exact, places, known)
            return torch.where(valid[:, None, :], normalized.to(features.dtype), 0.0), following
        before, sums, squares = known.split_with_sizes([1, config.mels, config.mels], dim=1)
        counted = (valid & (positions >= places[:, None])).to(torch.float64)
        frames = before + counted.sum(dim=1, keepdim=True)
        sums = sums + (exact * counted[:, None, :]).sum(dim=-1)
        squares = squares + (exact.square() * counted[:, None, :]).sum(dim=-1)
        fade = (config.memory_frames / frames.clamp(min=1.0)).clamp(max=1.0)
        frames, sums, squares = frames * fade, sums * fade, squares * fade
        count = frames.clamp(min=1e-9)
        mean = sums / count
        deviation = (squares / count - mean.square()).clamp(min=0.0).sqrt()
        centred = features - mean.to(features.dtype)[:, :, None]
        scaled = centred / (deviation.to(features.dtype)[:, :, None] + config.deviation_floor)
        # Rows of padding have seen nothing: whatever they became, it must not be NaN times zero.
        return torch.where(valid[:, None, :], scaled, 0.0), torch.cat([frames, sums, squares], dim=1)


def _normalize_causal(
    config: FeatureConfig, exact: Tensor, places: Tensor, known: Tensor
) -> tuple[Tensor, Tensor]:
    """As `acoustic.features.normalization.normalize_causal`, all rows at once. A memory is full once in a window at
    most:
    `acoustic.config` sees to it."""
    # Before each frame and after the last, the prior included: [batch, 1 + 2 mels, frames + 1].
    added = torch.cat([torch.ones_like(exact[:, :1]), exact, exact.square()], dim=1)
    history = torch.cat([known[:, :, None], known[:, :, None] + added.cumsum(-1)], dim=-1)
    full = history[:, :1] >= config.memory_frames
    when = full.to(torch.int8).argmax(-1, keepdim=True)  # 0 where it never is: `full` is false there
    history = torch.where(full, history - history.gather(-1, when.expand(-1, history.shape[1], -1)) / 2, history)
    frames, sums, squares = history[..., 1:].split_with_sizes([1, config.mels, config.mels], dim=1)
    mean, square = sums / frames, squares / frames
    deviation = (square - mean.square()).clamp(min=0.0).sqrt()
    following = history.gather(-1, places[:, None, None].expand(-1, history.shape[1], -1))[..., 0]
    return (exact - mean) / (deviation + config.deviation_floor), following


def load_states(rows: Tensor, windows: Sequence[Window], empty: StreamState) -> None:
    """Into the first rows what the streams of these windows have left behind, on this device or elsewhere."""
    states = [stream_state_of(window, empty).values for window in windows]
    here = [torch.as_tensor(values, device=rows.device) for values in states]
    torch.stack(here, out=rows[: len(windows)])


def following_states(windows: Sequence[Window], following: Tensor) -> Sequence[Tensor]:
    """What a run left behind for the windows to come. Each is a tensor of its own: a view would keep the room of the
    whole batch for as long as the slowest of its streams."""
    return [row.clone() for row in following[: len(windows)].unbind()]
