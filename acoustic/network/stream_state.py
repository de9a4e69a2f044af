"""Carried state in PyTorch: the last inputs of every convolution go from window to window as one row of numbers.

The ONNX graph of the same arithmetic is `acoustic.export.streaming`, which hears nothing twice; here what lies ahead is
heard anew in every window, as rows of one bucket are.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from acoustic.network.modules import Masks, Reaching
from acoustic.network.network import Block, Network


@dataclass(frozen=True)
class Place:
    """Where the inputs of one that reaches lie among those of as many channels."""

    channels: int
    first: int


class Carrying:
    """A network that goes on where the windows before stopped. Rows are streams, nothing mixes them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.places: dict[Reaching, Place] = {}
        self.steps: dict[int, int] = {}
        """By channels: how many steps are carried."""
        for block in network.blocks:
            for unit in cast(Block, block).reaches:
                if unit.left:
                    channels = unit.reaching_channels
                    self.places[unit] = Place(channels, self.steps.get(channels, 0))
                    self.steps[channels] = self.steps.get(channels, 0) + unit.left

    @property
    def size(self) -> int:
        """Numbers in a row. All zero: nothing was heard yet."""
        return sum(channels * steps for channels, steps in self.steps.items())

    def __call__(
        self, features: Tensor, lengths: Tensor, state: Tensor, hop: Tensor
    ) -> tuple[Tensor, Tensor]:
        """features [rows, mels, frames], state [rows, size] and each row's hop in frames to log-probabilities
        [rows, outputs, classes] and the state that the windows after those hops begin with."""
        masks = StreamingMasks(lengths, state, hop, self)
        log_probs = F.log_softmax(self.network.scores(features, masks).float(), dim=-1)
        return log_probs, masks.next_state()


class StreamingMasks(Masks):
    """Masks of one run that put the inputs of earlier windows in front of the inputs of every convolution."""

    def __init__(self, lengths: Tensor, state: Tensor, hop: Tensor, carrying: Carrying) -> None:
        super().__init__(lengths)
        self._places = carrying.places
        self._hop = hop
        sizes = [channels * steps for channels, steps in carrying.steps.items()]
        self._before = {
            channels: part.reshape(-1, channels, steps)
            for (channels, steps), part in zip(
                carrying.steps.items(), state.split_with_sizes(sizes, dim=1), strict=True
            )
        }
        self._following: dict[int, list[Tensor]] = {channels: [] for channels in carrying.steps}

    def reached(self, x: Tensor, unit: Reaching) -> tuple[Tensor, int]:
        if not unit.left:
            return x, 0
        place = self._places[unit]
        before = self._before[place.channels][:, :, place.first : place.first + unit.left]
        whole = torch.cat([before.to(x.dtype), x], dim=-1)
        steps = (self._hop // unit.rate)[:, None] + torch.arange(unit.left, device=x.device)
        wanted = steps[:, None, :].expand(-1, whole.shape[1], -1)
        self._following[place.channels].append(whole.gather(2, wanted))
        return whole, 0

    def next_state(self) -> Tensor:
        """After the run: one row a stream."""
        parts = [torch.cat(pieces, dim=-1).flatten(1) for pieces in self._following.values()]
        return torch.cat(parts, dim=1)
