"""INT8 already in training: weights and activations are rounded in the forward pass as the served graph rounds them,
and gradients pass as if they were not (a straight-through estimate, Jacob et al. 2018). What the graph does is in
`acoustic.export.onnx`; the ranges that it takes from some minutes of speech are here a batch's extremes.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from acoustic.checkpoint import quantize
from acoustic.network import Network
from acoustic.network.modules import Unit
from acoustic.network.network import Block
from training.errors import TrainingError

FARTHER = 1.1
"""How much farther the extremes of minutes reach than those of a batch (1.04 to 1.15 in half of the places of the model
in the box: its card against batches of six clips)."""


class _Straight(torch.autograd.Function):
    """Rounded to steps of so much; the gradient is that of what came in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        return (x / step).round_().mul_(step).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


_straight: Any = _Straight.apply


def rounded_weight(weight: Tensor) -> Tensor:
    """In the steps of its output channel."""
    _, step = quantize(weight.detach())
    return cast(Tensor, _straight(weight, step.view(-1, *[1] * (weight.dim() - 1))))


def rounded_activation(x: Tensor) -> Tensor:
    """In 255 steps between its extremes; what lies beyond them is cut off, as the served graph does."""
    low, high = extremes(x.detach())
    low = low.clamp(max=0)
    step = (high.clamp(min=0) - low).clamp(min=1e-12) / 255
    zero = (-low / step).round()
    return cast(Tensor, _straight(x.clamp(-zero * step, (255 - zero) * step), step))


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """As minutes would have them."""
    low, high = x.float().aminmax()
    return low * FARTHER, high * FARTHER


def attach_quantization(model: nn.Module) -> None:
    """Let a network round whatever INT8 rounds, while it is in training."""
    assert isinstance(model, Network)
    blocks = [
        block for block in model.blocks if isinstance(block, Block) and not block.dense and not block.joins
    ]
    plain = model.config.activation == "relu" and model.config.norm != "weight"
    if not plain or len(blocks) < len(model.blocks):
        raise TrainingError(
            f"run.quantization_aware cannot round {model.config.name} as INT8 does: it knows blocks of convolutions with ReLU, "
            "each with a bypass of its own input at most, and no weight norm."
        )
    blocks[0].register_forward_pre_hook(_rounded_features)
    for index, block in enumerate(blocks):
        units = [cast(Unit, unit) for unit in block.units]
        added_to = block.identity or len(block.bypasses) > 0
        rounded: list[nn.Module] = [*(unit.tapped for unit in units if unit.depthwise is not None)]
        rounded += [*(units if added_to else units[:-1]), *block.bypasses]
        # The last block is heard by the output layer alone, which stays exact.
        for module in rounded if index == len(blocks) - 1 else [*rounded, block]:
            module.register_forward_hook(_rounded_output)
    weights = _Weights(
        [module for block in blocks for module in block.modules() if isinstance(module, nn.Conv1d)]
    )
    model.register_forward_pre_hook(weights.swap)
    model.register_forward_hook(weights.restore, always_call=True)


def _rounded_features(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    panes, masks = inputs
    return ([*panes[:-1], rounded_activation(panes[-1])], masks) if module.training else None


def _rounded_output(module: nn.Module, inputs: tuple[Any, ...], made: Tensor) -> Tensor | None:
    return rounded_activation(made) if module.training else None


class _Weights:
    """Rounded weights in the place of a network's own while it is called."""

    def __init__(self, layers: list[nn.Conv1d]) -> None:
        self.layers = layers
        self.own: list[nn.Parameter] = []

    def swap(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            self.own = [cast(nn.Parameter, layer.weight) for layer in self.layers]
            for layer, own in zip(self.layers, self.own, strict=True):
                cast(Any, layer._parameters)["weight"] = rounded_weight(own)

    def restore(self, module: nn.Module, inputs: tuple[Any, ...], made: Any) -> None:
        for layer, own in zip(self.layers, self.own, strict=False):
            layer._parameters["weight"] = own
        self.own = []
