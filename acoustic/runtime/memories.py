"""What streams remember between windows, as the rows of a batch on the GPU: normalisation, carried state.

Each comes from the windows of a run and goes back to them as a plain value (`Memory`, `State`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from acoustic.carried import Memory, State
from acoustic.normalisation import first_memory
from acoustic.runtime.backend import carried_state, causal_memory, running_memory
from acoustic.shape import FeatureConfig
from acoustic.windows import Window


@dataclass
class Sums:
    """The memory of running or causal normalisation for each row of a batch, on the device."""

    frames: Tensor  # [batch]
    sums: Tensor  # [batch, mels]
    squares: Tensor
    place: Tensor  # [batch]: the first frame that counts; with causal normalisation that of the next window

    @staticmethod
    def empty(batch: int, mels: int, device: torch.device) -> "Sums":
        """Room for a batch."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        return Sums(zeros(batch), zeros(batch, mels), zeros(batch, mels), zeros(batch))

    def load(self, config: FeatureConfig, windows: Sequence[Window], hops: Sequence[int]) -> None:
        """What the streams of these windows have shown before. `hops`: how far on the next window of each begins."""
        rows = []
        for window in windows:
            causal = config.normalise == "causal"
            known = causal_memory(window) if causal else running_memory(window)
            memory = known or first_memory(config)
            assert memory is not None
            rows.append(memory)
        count = len(windows)
        if config.normalise == "causal":
            places = [float(hop) for hop in hops]
        else:
            places = [float(window.span.new_first - window.span.first_frame) for window in windows]
        self.frames[:count] = torch.tensor([row.frames for row in rows], dtype=torch.float64)
        self.sums[:count] = torch.from_numpy(np.stack([row.sums for row in rows]))
        self.squares[:count] = torch.from_numpy(np.stack([row.squares for row in rows]))
        self.place[:count] = torch.tensor(places, dtype=torch.float64)
        self.place[count:] = 0

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
    exact = features.to(torch.float64)
    if config.normalise == "causal":
        normalised, following = _normalise_causal(config, exact, known)
        return torch.where(valid[:, None, :], normalised.to(features.dtype), 0.0), following
    counted = (valid & (positions >= known.place[:, None])).to(torch.float64)
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
    return torch.where(valid[:, None, :], scaled, 0.0), Sums(frames, sums, squares, known.place)


def _normalise_causal(config: FeatureConfig, exact: Tensor, known: Sums) -> tuple[Tensor, Sums]:
    """As `acoustic.normalisation.normalise_causal`, all rows at once. A memory is full once in a window at most:
    `acoustic.shape` sees to it."""
    steps = torch.arange(1, exact.shape[-1] + 1, dtype=torch.float64, device=exact.device)
    # Before each frame and after the last, the prior included: [batch, 1 or mels, frames + 1].
    frames = torch.cat([known.frames[:, None], known.frames[:, None] + steps], 1)[:, None]
    sums, squares = (
        torch.cat([before[:, :, None], before[:, :, None] + values.cumsum(-1)], -1)
        for before, values in ((known.sums, exact), (known.squares, exact.square()))
    )
    full = frames >= config.memory_frames
    when = full.to(torch.int8).argmax(-1, keepdim=True)  # 0 where it never is: `full` is false there
    frames, sums, squares = (
        torch.where(full, total - total.gather(-1, when.expand(-1, total.shape[1], -1)) / 2, total)
        for total in (frames, sums, squares)
    )
    mean, square = sums[..., 1:] / frames[..., 1:], squares[..., 1:] / frames[..., 1:]
    deviation = (square - mean.square()).clamp(min=0.0).sqrt()
    place = known.place.long()[:, None, None]
    following = Sums(
        frames.gather(-1, place)[:, 0, 0],
        sums.gather(-1, place.expand(-1, sums.shape[1], -1))[..., 0],
        squares.gather(-1, place.expand(-1, sums.shape[1], -1))[..., 0],
        known.place,
    )
    return (exact - mean) / (deviation + config.deviation_floor), following


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

    def load(self, windows: Sequence[Window], hops: Sequence[int]) -> None:
        """What the streams of these windows have left behind, and how far on the next window of each begins."""
        count, size = len(windows), self.state.shape[1]
        empty = State(torch.zeros(size, dtype=self.state.dtype).numpy())
        states = [carried_state(window, empty).values for window in windows]
        self.state[:count] = torch.from_numpy(np.stack(states))
        self.hop[:count] = torch.tensor(hops)
        self.hop[count:] = 0  # rows of no window: a longer hop than this bucket's would reach beyond it


def following_states(windows: Sequence[Window], following: Tensor, sums: Sums | None) -> list[State | None]:
    """The states that a run left behind, off the device; none for windows that carry nothing."""
    rows = following[: len(windows)].cpu().numpy()
    memories = sums.memories(len(windows)) if sums else [None] * len(windows)
    return [
        State(row.copy(), memory) if window.span.carried else None
        for window, row, memory in zip(windows, rows, memories, strict=True)
    ]
