"""Stochastic depth (Huang et al. 2016, arXiv 1603.09382): in training each row passes over some parts of its network,
so that no part comes to rely on all the others.
"""

from typing import Any

import torch
from torch import Tensor, nn

from acoustic.network import Network
from acoustic.network.layers import Layers
from training.errors import TrainingError


class Skipper:
    """A hook of one part: what it adds counts for nothing in a share of the rows, and for more in the others."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], added: Tensor) -> Tensor | None:
        """None: as it is."""
        if not module.training:
            return None
        kept = torch.rand(len(added), 1, 1, device=added.device) >= self.share
        return added * (kept / (1.0 - self.share)).to(added.dtype)


def skip_parts(network: nn.Module, share: float) -> None:
    """Let the last of a network's attending parts be passed over by a share of the rows, those before it by less, in
    proportion to how deep they lie.
    """
    blocks = (
        [block for block in network.blocks if isinstance(block, Layers)]
        if isinstance(network, Network)
        else []
    )
    parts = [part for block in blocks for part in block.parts()]
    if not parts:
        raise TrainingError(
            f"model.skip is {share}, and this network has no layers that attend: only those are passed over."
        )
    for depth, part in enumerate(parts, 1):
        part.register_forward_hook(Skipper(share * depth / len(parts)))
