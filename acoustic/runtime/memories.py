"""What streams remember between windows, as the rows of a batch on the GPU: running normalisation, carried state.

Each comes from the windows of a run and goes back to them as a plain value (`Memory`, `State`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from acoustic.carried import Memory, State
from acoustic.normalisation import first_memory
from acoustic.runtime.backend import carried_state, running_memory
from acoustic.shape import FeatureConfig, ModelConfig
from acoustic.windows import Window


@dataclass
class Sums:
    """The memory of running normalisation for each row of a batch, on the device."""

    frames: Tensor  # [batch]
    sums: Tensor  # [batch, mels]
    squares: Tensor
    new_first: Tensor  # [batch]: the first frame that counts

    @staticmethod
    def empty(batch: int, mels: int, device: torch.device) -> "Sums":
        """Room for a batch."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        return Sums(zeros(batch), zeros(batch, mels), zeros(batch, mels), zeros(batch))

    def load(self, config: FeatureConfig, windows: Sequence[Window]) -> None:
        """What the streams of these windows have shown before."""
        rows = []
        for window in windows:
            memory = running_memory(window) or first_memory(config)
            assert memory is not None
            rows.append(memory)
        count = len(windows)
        first = [float(window.span.new_first - window.span.first_frame) for window in windows]
        self.frames[:count] = torch.tensor([row.frames for row in rows], dtype=torch.float64)
        self.sums[:count] = torch.from_numpy(np.stack([row.sums for row in rows]))
        self.squares[:count] = torch.from_numpy(np.stack([row.squares for row in rows]))
        self.new_first[:count] = torch.tensor(first, dtype=torch.float64)

    def memories(self, count: int) -> list[Memory]:
        """The first rows, off the device."""
        frames = self.frames.cpu().tolist()
        sums, squares = self.sums.cpu().numpy(), self.squares.cpu().numpy()
        return [Memory(frames[row], sums[row].copy(), squares[row].copy()) for row in range(count)]


def normalise_rows(
    config: FeatureConfig, features: Tensor, lengths: Tensor, known: Sums | None
) -> tuple[Tensor, Sums | None]:
    """[batch, mels, frames] by each row's own rule, as `acoustic.normalisation` does it for one."""
    positions = torch.arange(features.shape[-1], device=features.device)[None, :]
    valid = positions < lengths[:, None]
    if known is None:
        mean = features.new_tensor(config.mean or ())[None, :, None]
        deviation = features.new_tensor(config.deviation or ())[None, :, None]
        return (features - mean) / (deviation + config.deviation_floor) * valid[:, None, :], None
    counted = (valid & (positions >= known.new_first[:, None])).to(torch.float64)
    exact = features.to(torch.float64)
    frames = known.frames + counted.sum(dim=1)
    sums = known.sums + (exact * counted[:, None, :]).sum(dim=-1)
    squares = known.squares + (exact.square() * counted[:, None, :]).sum(dim=-1)
    fade = (config.memory_frames / frames.clamp(min=1.0)).clamp(max=1.0)
    frames, sums, squares = frames * fade, sums * fade[:, None], squares * fade[:, None]
    count = frames.clamp(min=1e-9)[:, None]
    mean = sums / count
    deviation = (squares / count - mean.square()).clamp(min=0.0).sqrt()
    centred = features - mean.to(features.dtype)[:, :, None]
    scaled = centred / (deviation.to(features.dtype)[:, :, None] + config.deviation_floor)
    # Rows of padding have seen nothing: whatever they became, it must not be NaN times zero.
    return torch.where(valid[:, None, :], scaled, 0.0), Sums(frames, sums, squares, known.new_first)


@dataclass
class Carried:
    """The carried state of each row, and how far on the next window of its stream begins."""

    state: Tensor  # [batch, numbers]
    hop: Tensor  # [batch], in feature frames

    @staticmethod
    def empty(batch: int, size: int, kind: torch.dtype, device: torch.device) -> "Carried":
        """Room for a batch; zeros are the state before a stream's first window."""
        state = torch.zeros(batch, size, dtype=kind, device=device)
        return Carried(state, torch.zeros(batch, dtype=torch.int64, device=device))

    def load(self, config: ModelConfig, windows: Sequence[Window]) -> None:
        """What the streams of these windows have left behind."""
        count, size = len(windows), self.state.shape[1]
        empty = State(torch.zeros(size, dtype=self.state.dtype).numpy())
        states = [carried_state(window, empty).values for window in windows]
        every = config.frames_per_output
        hops = [0 if window.span.last else window.span.kept * every for window in windows]
        self.state[:count] = torch.from_numpy(np.stack(states))
        self.hop[:count] = torch.tensor(hops)
        self.hop[count:] = 0  # rows of no window: a longer hop than this bucket's would reach beyond it


def following_states(windows: Sequence[Window], following: Tensor) -> list[State | None]:
    """The states that a run left behind, off the device; none for windows that carry nothing."""
    rows = following[: len(windows)].cpu().numpy()
    return [
        State(row.copy()) if window.span.carried else None for window, row in zip(windows, rows, strict=True)
    ]
