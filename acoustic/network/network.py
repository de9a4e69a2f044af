"""From ModelConfig to a network: the blocks, their bypasses and the decoder.

What a convolution, a norm or an activation is: `acoustic.network.modules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acoustic.config import KEEPS_BRANCHES, BlockConfig, ModelConfig
from acoustic.network.modules import (
    Bypass,
    Masks,
    Reaching,
    Unit,
    activate,
    convolve,
    prefers_time_major,
    time_major,
)


@dataclass(frozen=True)
class Branch:
    """The output of an earlier block: how wide it is and how many feature frames it takes for a step."""

    channels: int
    rate: int


class Block(nn.Module):
    """`repeat` sub-blocks; the bypasses are added to the last one before its activation."""

    def __init__(self, config: ModelConfig, block: BlockConfig, branches: Sequence[Branch]) -> None:
        super().__init__()
        newest = branches[-1]
        self.activation = config.activation
        self.identity = block.residual == "identity"
        self.dense = block.residual == "dense_residual"
        self.joins = block.residual in ("densenet", "dense_rnet")
        self.steps = [newest.rate // branch.rate for branch in branches]
        inputs = sum(branch.channels for branch in branches) if self.joins else newest.channels
        units, rate, channels = [], newest.rate, inputs
        for index, stride in enumerate(block.strides()):
            units.append(Unit(config, block, index, channels, rate))
            rate, channels = rate * stride, block.channels
        self.units = nn.ModuleList(units)
        sources: list[Branch] = []
        if self.dense:
            sources = list(branches)
        elif block.residual in ("residual", "dense_rnet"):
            sources = [Branch(inputs, newest.rate)]
        self.bypasses = nn.ModuleList(
            Bypass(config, branch.channels, block.channels, rate // branch.rate, branch.rate)
            for branch in sources
        )
        self.dropout = nn.Dropout(block.dropout)

    @property
    def reaches(self) -> list[Reaching]:
        """What looks to the left or right, in the order in which it is heard."""
        return [cast(Unit, unit) for unit in self.units]

    def forward(self, branches: Sequence[Tensor], masks: Masks) -> Tensor:
        """The block's output, from the outputs of everything before it, newest last."""
        x = branches[-1]
        if self.joins:
            x = torch.cat(
                [branch[:, :, ::step] for branch, step in zip(branches, self.steps, strict=True)], dim=1
            )
        block_input = x
        last = len(self.units) - 1
        for index, unit in enumerate(self.units):
            rectified = index < last and self.activation == "relu"
            x = unit(x, masks, rectified=rectified)
            if index < last:
                x = self.dropout(x if rectified else activate(x, self.activation))
        if self.identity:
            x = x + block_input
        for bypass, branch in zip(self.bypasses, branches if self.dense else [block_input], strict=False):
            x = x + bypass(branch, masks)
        out: Tensor = self.dropout(activate(x, self.activation))
        return out


class Network(nn.Module):
    """Normalized log-mel features in, log-probabilities of characters out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        branches = [Branch(config.features.mels, 1)]
        blocks: list[nn.Module] = []
        for block in config.blocks:
            # The features themselves are no pane of the dense variants: the prologue's output is the first.
            blocks.append(Block(config, block, branches[1:] or branches))
            branches.append(Branch(block.channels, branches[-1].rate * block.stride))
        self.blocks = nn.ModuleList(blocks)
        self.keeps_panes = any(block.residual in KEEPS_BRANCHES for block in config.blocks)
        self.output = nn.Conv1d(branches[-1].channels, config.classes * config.outputs_per_step, 1)
        nn.init.xavier_uniform_(self.output.weight)

    def hidden(self, features: Tensor, masks: Masks) -> Tensor:
        """The last hidden layer [batch, channels, steps]."""
        branches = [time_major(features) if self.training and prefers_time_major(features) else features]
        for index, block in enumerate(self.blocks):
            x = block(branches, masks)
            branches = [*branches, x] if self.keeps_panes and index else [x]
        return branches[-1]

    def logits(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Unnormalized scores [batch, outputs, classes]."""
        return self.scores(features, Masks(lengths))

    def scores(self, features: Tensor, masks: Masks) -> Tensor:
        """The same, with the masks of this run."""
        x = self.hidden(features, masks)
        if self.config.masks != "none":
            x = masks.apply(x, self.config.stride_frames)
        scores = convolve(x, self.output).transpose(1, 2)
        # [batch, steps, outputs of a step x classes]: each step's outputs follow one another in time.
        return scores.reshape(scores.shape[0], -1, self.config.classes)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """features [batch, mels, frames] and their lengths (None: all full) to natural-log probabilities
        [batch, outputs, classes] and how many outputs are valid."""
        log_probs = F.log_softmax(self.logits(features, lengths).float(), dim=-1)
        if lengths is None:
            lengths = torch.full((features.shape[0],), features.shape[-1], device=features.device)
        every = self.config.frames_per_output
        return log_probs, (lengths + (every - 1)) // every


def build(config: ModelConfig) -> Network:
    """A freshly initialized network in training mode. Weights come from `acoustic.checkpoint`."""
    return Network(config)
