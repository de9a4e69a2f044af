"""Channels brought to like ranges before INT8, which rounds all channels of a tensor in the same steps.

What a depthwise convolution makes has no norm: a few of its channels reach ten times as far as the others, and what the
others say is rounded away. A channel made smaller there and larger again in the pointwise weights behind it changes no
sum. Both are rounded, and share it (SmoothQuant, Xiao et al. 2022, with a half).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from acoustic.checkpoint import Checkpoint
from acoustic.features.framing import Samples
from acoustic.features.front_end import FrontEnd
from acoustic.network.modules import PaddingMasks, SubBlock, slide
from acoustic.runtime.backend import recording_features

FARTHEST = 16.0
"""No channel is made smaller or larger by more: what a few minutes of speech hardly move, other sound may."""


@torch.no_grad()
def apply_smoothquant(checkpoint: Checkpoint, recordings: Iterable[Samples]) -> Checkpoint:
    """The same network in other numbers. The recordings (16 kHz, mono) show how far each channel reaches."""
    network = checkpoint.network().eval()
    sub_blocks: dict[str, Tensor] = {}
    for name, unit in network.named_modules():
        if isinstance(unit, SubBlock) and unit.depthwise is not None and unit.groups == 1:
            unit.register_forward_pre_hook(_watching(name, sub_blocks))
    front_end = FrontEnd(checkpoint.config.features)
    for samples in recordings:
        network(recording_features(front_end, checkpoint.config.features, samples)[None])
    state = dict(checkpoint.state)
    for name, reach in sub_blocks.items():
        taps, weights = f"{name}.depthwise.weight", f"{name}.conv.weight"
        factors = shared_factors(reach, state[weights][:, :, 0].float())
        state[taps] = state[taps] / factors[:, None, None]
        state[weights] = state[weights] * factors[None, :, None]
    return replace(checkpoint, state=state)


def shared_factors(reach: Tensor, weights: Tensor) -> Tensor:
    """By what each channel [inputs] is made smaller before the weights [outputs, inputs], which make it larger again.
    Weights are rounded row by row: what counts is how they compare with the largest of their row."""
    rows = weights.abs().amax(1, keepdim=True).clamp(min=1e-12)
    columns = (weights.abs() / rows).amax(0)
    factors = (reach.clamp(min=1e-12) / columns.clamp(min=1e-12)).sqrt()
    return (factors / factors.median()).clamp(1 / FARTHEST, FARTHEST)


def _watching(name: str, sub_blocks: dict[str, Tensor]) -> Callable[[SubBlock, tuple[Tensor, PaddingMasks]], None]:
    def watch(unit: SubBlock, heard: tuple[Tensor, PaddingMasks]) -> None:
        made = slide(unit, unit.temporal_conv, *heard, dilation=unit.dilation, masked=unit.masked)
        reach = made.abs().amax((0, 2))
        sub_blocks[name] = torch.maximum(sub_blocks[name], reach) if name in sub_blocks else reach

    return watch
