"""Stream state in PyTorch: the last inputs of every convolution, kept between windows as one row of numbers.

`acoustic.export.streaming` is the same computation as an ONNX graph. That graph computes the look-ahead once; here it
is computed again in every window, which keeps all rows of a batch in one shape.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from acoustic.network.modules import PaddingMasks, SubBlock
from acoustic.network.network import Block, Network


@dataclass(frozen=True)
class StateSlot:
    """Where a sub-block's inputs lie in the state: among those with equally many channels, from step `first` on."""

    channels: int
    first: int


class StatefulNetwork:
    """A network that continues from the state of earlier windows. Rows of a batch are independent streams."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.slots: dict[SubBlock, StateSlot] = {}
        self.steps: dict[int, int] = {}
        """Steps in the state, by number of channels."""
        for block in network.blocks:
            for sub_block in cast(Block, block).sub_blocks:
                if sub_block.left:
                    channels = sub_block.state_channels
                    self.slots[sub_block] = StateSlot(channels, self.steps.get(channels, 0))
                    self.steps[channels] = self.steps.get(channels, 0) + sub_block.left

    @property
    def size(self) -> int:
        """Numbers in the state of one stream. The initial state is all zeros."""
        return sum(channels * steps for channels, steps in self.steps.items())

    def __call__(
        self, features: Tensor, lengths: Tensor, state: Tensor, hop: Tensor
    ) -> tuple[Tensor, Tensor]:
        """features [rows, mels, frames], state [rows, size] and each row's hop in frames to log-probabilities
        [rows, outputs, classes] and the state at the end of those hops."""
        masks = StatefulMasks(lengths, state, hop, self)
        log_probs = F.log_softmax(self.network.masked_logits(features, masks).float(), dim=-1)
        return log_probs, masks.next_state()


class StatefulMasks(PaddingMasks):
    """Masks of one run that prepend a stream's earlier inputs to the input of every convolution."""

    def __init__(self, lengths: Tensor, state: Tensor, hop: Tensor, network: StatefulNetwork) -> None:
        super().__init__(lengths)
        self._slots = network.slots
        self._hop = hop
        sizes = [channels * steps for channels, steps in network.steps.items()]
        self._previous = {
            channels: part.reshape(-1, channels, steps)
            for (channels, steps), part in zip(
                network.steps.items(), state.split_with_sizes(sizes, dim=1), strict=True
            )
        }
        self._next: dict[int, list[Tensor]] = {channels: [] for channels in network.steps}

    def with_left_context(self, x: Tensor, sub_block: SubBlock) -> tuple[Tensor, int]:
        if not sub_block.left:
            return x, 0
        slot = self._slots[sub_block]
        previous = self._previous[slot.channels][:, :, slot.first : slot.first + sub_block.left]
        extended = torch.cat([previous.to(x.dtype), x], dim=-1)
        steps = (self._hop // sub_block.rate)[:, None] + torch.arange(sub_block.left, device=x.device)
        index = steps[:, None, :].expand(-1, extended.shape[1], -1)
        self._next[slot.channels].append(extended.gather(2, index))
        return extended, 0

    def next_state(self) -> Tensor:
        """The state after the run, one row per stream."""
        parts = [torch.cat(inputs, dim=-1).flatten(1) for inputs in self._next.values()]
        return torch.cat(parts, dim=1)
