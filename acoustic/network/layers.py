"""Blocks that attend: layers of attention over what came before, a gated convolution and a feed-forward part.

Each part hears its input through a layer norm and adds to it (Gulati et al. 2020, the conformer, without the half
steps). An attention looks `back` steps and never ahead. Before a stream's beginning lie zeros, as for every
convolution: a stream with carried state and a whole recording hear the same.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acoustic.network.parts import LayerNorm, Masks, Reaching, convolved, halved, lies_by_step, padded, slide
from acoustic.shape import BlockConfig, ModelConfig

FARTHEST = 8.0
"""What a distance costs an attention at the most when training begins."""
OUT_OF_REACH = -1e4


class Attention(nn.Module, Reaching):
    """Each step looks at itself and the `left` steps before it; how far back a step lies counts by head."""

    def __init__(self, config: ModelConfig, block: BlockConfig, rate: int) -> None:
        super().__init__()
        self.left, self.right, self.rate, self.stride = block.back, 0, rate, 1
        self.heads = block.heads
        self.reaching_channels = 2 * block.channels
        self.before = LayerNorm(block.channels, config.norm_epsilon)
        self.into = pointwise(block.channels, 3 * block.channels)
        self.out = silent(pointwise(block.channels, block.channels))
        slopes = 2.0 ** -torch.arange(1, block.heads + 1)
        distances = torch.arange(block.back, -1, -1)
        self.distance = nn.Parameter(-(slopes[:, None, None] * distances).clamp(max=FARTHEST))
        """[heads, 1, back + 1], the farthest first."""

    def forward(self, x: Tensor, masks: Masks) -> Tensor:
        """[batch, channels, time] to what is to be added to it."""
        channels = x.shape[1]
        whole = convolved(self.before(x), self.into)
        asked, known = whole[:, :channels], whole[:, channels:]
        known, zeros = masks.reached(known, self)
        if zeros:
            known = padded(known, zeros, 0)
        queries = self._by_head(asked)
        keys, values = (self._by_head(part) for part in known.chunk(2, dim=1))
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.mT
        shares = torch.softmax(scores.float() + self.reach(x.shape[-1]), dim=-1).to(values.dtype)
        heard = (shares @ values).transpose(1, 2).flatten(2)
        return convolved(heard.mT if lies_by_step(x) else heard.mT.contiguous(), self.out)

    def reach(self, steps: int) -> Tensor:
        """What is added to the scores [heads, steps, left + steps]."""
        table = F.pad(self.distance[:, 0], (1, 1), value=OUT_OF_REACH)
        return table[:, places(steps, self.left, table.device)]

    def _by_head(self, x: Tensor) -> Tensor:
        """[batch, channels, time] to [batch, heads, time, channels of a head]."""
        rows, channels, steps = x.shape
        return x.mT.reshape(rows, steps, self.heads, channels // self.heads).transpose(1, 2)


def places(steps: int, left: int, device: torch.device) -> Tensor:
    """For each step (row) and each of the `left` before the first and all steps (column): the place in a table of
    distances that has one more entry at either end for what is out of reach."""
    columns, rows = torch.arange(left + steps, device=device), torch.arange(steps, device=device)
    farthest_first = columns[None] - rows[:, None]
    return (farthest_first + 1).clamp(0, left + 2)


class GatedConvolution(nn.Module, Reaching):
    """A gate, depthwise taps, and channels mixed again."""

    def __init__(self, config: ModelConfig, block: BlockConfig, index: int, rate: int) -> None:
        super().__init__()
        channels = block.channels
        self.left, self.right = block.padding(index)
        self.rate, self.stride = rate, 1
        self.masked = config.masks != "none"
        self.reaching_channels = channels
        self.before = LayerNorm(channels, config.norm_epsilon)
        self.gate = pointwise(channels, 2 * channels)
        self.depthwise = nn.Conv1d(channels, channels, block.kernel, groups=channels, bias=False)
        nn.init.xavier_uniform_(self.depthwise.weight)
        self.between = LayerNorm(channels, config.norm_epsilon)
        self.out = silent(pointwise(channels, channels))

    def forward(self, x: Tensor, masks: Masks) -> Tensor:
        """[batch, channels, time] to what is to be added to it."""
        gated = halved(convolved(self.before(x), self.gate))
        slid = slide(self, self.depthwise, gated, masks, masked=self.masked)
        return convolved(F.silu(self.between(slid)), self.out)


class FeedForward(nn.Module):
    """Each step by itself: wider, squared where above zero, and back."""

    def __init__(self, config: ModelConfig, block: BlockConfig) -> None:
        super().__init__()
        self.before = LayerNorm(block.channels, config.norm_epsilon)
        self.wider = pointwise(block.channels, block.widen * block.channels)
        self.out = silent(pointwise(block.widen * block.channels, block.channels))

    def forward(self, x: Tensor, masks: Masks) -> Tensor:
        """[batch, channels, time] to what is to be added to it."""
        return convolved(F.relu(convolved(self.before(x), self.wider)).square(), self.out)


class Layers(nn.Module):
    """`repeat` layers between a projection (where the width changes) and a last norm."""

    def __init__(self, config: ModelConfig, block: BlockConfig, inputs: int, rate: int) -> None:
        super().__init__()
        changes = inputs != block.channels
        self.enter = pointwise(inputs, block.channels) if changes else None
        self.layers = nn.ModuleList(
            nn.ModuleList(
                (
                    Attention(config, block, rate),
                    GatedConvolution(config, block, index, rate),
                    FeedForward(config, block),
                )
            )
            for index in range(block.repeat)
        )
        self.last = LayerNorm(block.channels, config.norm_epsilon)

    def parts(self) -> Iterator[nn.Module]:
        """One after the other."""
        for layer in self.layers:
            yield from cast(nn.ModuleList, layer)

    @property
    def reaches(self) -> list[Reaching]:
        """What looks to the left or right, in the order in which it is heard."""
        return [part for part in self.parts() if isinstance(part, Reaching)]

    def forward(self, panes: Sequence[Tensor], masks: Masks) -> Tensor:
        """The block's output, from the outputs of everything before it, newest last."""
        x = panes[-1]
        if self.enter is not None:
            x = convolved(x, self.enter)
        for part in self.parts():
            x = x + part(x, masks)
        return cast(Tensor, self.last(x))


def pointwise(inputs: int, outputs: int) -> nn.Conv1d:
    """Mixes channels, step by step."""
    layer = nn.Conv1d(inputs, outputs, 1)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(cast(Tensor, layer.bias))
    return layer


def silent(layer: nn.Conv1d) -> nn.Conv1d:
    """What it makes counts for nothing until it has learnt."""
    nn.init.zeros_(layer.weight)
    return layer
