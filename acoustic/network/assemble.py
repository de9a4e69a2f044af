"""From ModelConfig to a network: the blocks, their bypasses and the decoder.

What a convolution, a norm or an activation is: `acoustic.network.parts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acoustic.network.parts import Bypass, Masks, Reaching, Unit, activate, by_step, convolved, wants_steps
from acoustic.shape import KEEP_PANES, BlockConfig, ModelConfig


@dataclass(frozen=True)
class Pane:
    """The output of an earlier block: how wide it is and how many feature frames it takes for a step."""

    channels: int
    rate: int


class Block(nn.Module):
    """`repeat` sub-blocks; the bypasses are added to the last one before its activation."""

    def __init__(self, config: ModelConfig, block: BlockConfig, panes: Sequence[Pane]) -> None:
        super().__init__()
        newest = panes[-1]
        self.activation = config.activation
        self.identity = block.residual == "identity"
        self.dense = block.residual == "dense_residual"
        self.joins = block.residual in ("densenet", "dense_rnet")
        self.steps = [newest.rate // pane.rate for pane in panes]
        inputs = sum(pane.channels for pane in panes) if self.joins else newest.channels
        units, rate, channels = [], newest.rate, inputs
        for index, stride in enumerate(block.strides()):
            units.append(Unit(config, block, index, channels, rate))
            rate, channels = rate * stride, block.channels
        self.units = nn.ModuleList(units)
        sources: list[Pane] = []
        if self.dense:
            sources = list(panes)
        elif block.residual in ("residual", "dense_rnet"):
            sources = [Pane(inputs, newest.rate)]
        self.bypasses = nn.ModuleList(
            Bypass(config, pane.channels, block.channels, rate // pane.rate, pane.rate) for pane in sources
        )
        self.dropout = nn.Dropout(block.dropout)

    @property
    def reaches(self) -> list[Reaching]:
        """What looks to the left or right, in the order in which it is heard."""
        return [cast(Unit, unit) for unit in self.units]

    def forward(self, panes: Sequence[Tensor], masks: Masks) -> Tensor:
        """The block's output, from the outputs of everything before it, newest last."""
        x = panes[-1]
        if self.joins:
            x = torch.cat([pane[:, :, ::step] for pane, step in zip(panes, self.steps, strict=True)], dim=1)
        block_input = x
        last = len(self.units) - 1
        for index, unit in enumerate(self.units):
            rectified = index < last and self.activation == "relu"
            x = unit(x, masks, rectified=rectified)
            if index < last:
                x = self.dropout(x if rectified else activate(x, self.activation))
        if self.identity:
            x = x + block_input
        for bypass, pane in zip(self.bypasses, panes if self.dense else [block_input], strict=False):
            x = x + bypass(pane, masks)
        out: Tensor = self.dropout(activate(x, self.activation))
        return out


class Network(nn.Module):
    """Normalised log-mel features in, log-probabilities of characters out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        panes = [Pane(config.features.mels, 1)]
        blocks: list[nn.Module] = []
        for block in config.blocks:
            # The features themselves are no pane of the dense variants: the prologue's output is the first.
            blocks.append(Block(config, block, panes[1:] or panes))
            panes.append(Pane(block.channels, panes[-1].rate * block.stride))
        self.blocks = nn.ModuleList(blocks)
        self.keeps_panes = any(block.residual in KEEP_PANES for block in config.blocks)
        self.output = nn.Conv1d(panes[-1].channels, config.classes * config.outputs_per_step, 1)
        nn.init.xavier_uniform_(self.output.weight)

    def hidden(self, features: Tensor, masks: Masks) -> Tensor:
        """The last hidden layer [batch, channels, steps]."""
        panes = [by_step(features) if self.training and wants_steps(features) else features]
        for index, block in enumerate(self.blocks):
            x = block(panes, masks)
            panes = [*panes, x] if self.keeps_panes and index else [x]
        return panes[-1]

    def logits(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Unnormalised scores [batch, outputs, classes]."""
        return self.scores(features, Masks(lengths))

    def scores(self, features: Tensor, masks: Masks) -> Tensor:
        """The same, with the masks of this run."""
        x = self.hidden(features, masks)
        if self.config.masks != "none":
            x = masks.apply(x, self.config.stride_frames)
        scores = convolved(x, self.output).transpose(1, 2)
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
    """A freshly initialised network in training mode. Weights come from `acoustic.checkpoint`."""
    return Network(config)
