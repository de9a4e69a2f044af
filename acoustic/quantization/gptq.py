"""INT8 weights rounded one after another, each of them making good what those before it changed.

Each rounded to its nearest step, weights err by chance, and what that does to a sum depends on how their inputs go
together. So they are rounded in turn, and those still to come take up the error as far as their inputs can stand in for
the others (GPTQ, Frantar et al. 2022). What a sum is off by on average goes into the norm or the offset behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from acoustic.checkpoint import MAX_WEIGHT, Checkpoint, StateDict
from acoustic.features.framing import Samples
from acoustic.features.front_end import FrontEnd
from acoustic.network import Network
from acoustic.network.modules import Bypass, SubBlock, pad_time
from acoustic.runtime.backend import recording_features

REACHES = (1.0, 0.96, 0.92, 0.87, 0.81)
"""How far a row's steps reach, of its largest weight: where that is cut off, the steps of all others are finer."""
DAMPING = 0.01
"""Of the inputs' mean power, added to each: some minutes of speech do not tell all."""
REPORT_INTERVAL = 20
"""Recordings or weights between two words of how far it has come."""


class Inputs:
    """What weights heard: their inputs' mean and how they go together, in one group or channel by channel."""

    def __init__(self) -> None:
        self.count = 0
        self.sums = self.products = torch.zeros(1, dtype=torch.float64)

    def add(self, heard: Tensor) -> None:
        """[groups, inputs, steps]."""
        self.count += heard.shape[-1]
        self.sums = self.sums + heard.sum(-1).double()
        self.products = self.products + (heard @ heard.mT).double()

    @property
    def mean(self) -> Tensor:
        """[groups, inputs]."""
        return self.sums / max(self.count, 1)

    @property
    def covariance(self) -> Tensor:
        """[groups, inputs, inputs]."""
        return self.products / max(self.count, 1) - self.mean[:, :, None] * self.mean[:, None, :]


@dataclass
class Layer:
    """One weight, by its name in the checkpoint, and what it has heard; `behind`: taps come before it."""

    weight: str
    offset: str
    """What takes up what the sums are off by on average: a bias, or the mean that a batch norm takes away."""
    heard: Inputs = field(default_factory=Inputs)
    behind: "Layer | None" = None


@torch.no_grad()
def apply_gptq(
    checkpoint: Checkpoint, recordings: Sequence[Samples], report: Callable[[str], None] = lambda text: None
) -> Checkpoint:
    """The network with weights that an INT8 file keeps as they are. Recordings (16 kHz, mono) show what it hears;
    `report` is told how far it has come."""
    network = checkpoint.network().eval()
    state = dict(checkpoint.state)
    layers = _listening(network, state)
    front_end = FrontEnd(checkpoint.config.features)
    for index, samples in enumerate(recordings):
        if not index % REPORT_INTERVAL:
            report(f"rounding: hearing recording {index + 1} of {len(recordings)}")
        network(recording_features(front_end, checkpoint.config.features, samples)[None])
    for index, layer in enumerate(layers):
        if not index % REPORT_INTERVAL:
            report(f"rounding: weight {index + 1} of {len(layers)}")
        lost = _round(state, layer)
        if layer.behind:
            # What the taps are off by reaches the sums through the weights.
            lost += state[layer.weight].flatten(1).double() @ _round(state, layer.behind)
        sign = -1.0 if layer.offset.endswith("running_mean") else 1.0
        state[layer.offset] = (state[layer.offset].double() + sign * lost).float()
    return replace(checkpoint, state=state)


def _round(state: StateDict, layer: Layer) -> Tensor:
    """Puts the rounded weights into the state; how much less each row sums up to than before, on average."""
    weight = state[layer.weight]
    before = weight.flatten(1).double()
    after = gptq_round(before, layer.heard.covariance)
    state[layer.weight] = after.float().reshape(weight.shape)
    return ((before - after) * layer.heard.mean).sum(1)


def gptq_round(weights: Tensor, inputs: Tensor) -> Tensor:
    """Weights [rows, n] in whole steps, LARGEST_WEIGHT of them for each row's largest: inputs of this covariance
    [1 or rows, n, n] are to make little of the change."""
    power = inputs.diagonal(dim1=-2, dim2=-1)
    inputs = inputs + torch.diag_embed((DAMPING * power.mean(-1, keepdim=True) + 1e-9).expand_as(power))
    order = power.argsort(-1, descending=True)
    inputs = torch.stack([group[places][:, places] for group, places in zip(inputs, order, strict=True)])
    pulls = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(inputs)), upper=True)
    order = order.expand(weights.shape)
    largest = weights.abs().amax(1).clamp(min=1e-12)
    best = (weights * (MAX_WEIGHT / largest[:, None])).round() * (largest[:, None] / MAX_WEIGHT)
    least = torch.full_like(largest, torch.inf)
    for reach in REACHES:
        steps = largest * (reach / MAX_WEIGHT)
        left, whole, loss = weights.gather(1, order), torch.empty_like(weights), torch.zeros_like(largest)
        for place in range(weights.shape[1]):
            nearest = (left[:, place] / steps).round().clamp(-MAX_WEIGHT, MAX_WEIGHT)
            error = (left[:, place] - nearest * steps) / pulls[:, place, place]
            left[:, place:] -= error[:, None] * pulls[:, place, place:]
            whole[:, place] = nearest
            loss += error.square()
        # A file finds a row's steps by its largest weight.
        better = (loss < least) & (whole.abs().amax(1) == MAX_WEIGHT)
        made = torch.empty_like(weights).scatter_(1, order, whole * steps[:, None])
        best[better], least[better] = made[better], loss[better]
    return best


def _listening(network: Network, state: StateDict) -> list[Layer]:
    """The layers that can be compensated, each listening to what comes in from now on."""
    layers = []
    for name, part in [*network.named_modules()]:
        if not isinstance(part, SubBlock | Bypass):
            continue
        weight, offset = f"{name}.conv.weight", _offset(name, state)
        if offset is None or weight not in state or part.conv.groups > 1:
            continue
        layer = Layer(weight, offset)
        layers.append(layer)
        if isinstance(part, Bypass):
            _listen(part, layer, lambda part, x: x[:, :, :: part.stride])
        elif part.depthwise is None:
            _listen(part, layer, lambda part, x: _windows(part, part.conv, x).flatten(1, 2))
        else:
            layer.behind = Layer(f"{name}.depthwise.weight", offset)
            _listen(part, layer.behind, lambda part, x: _windows(part, part.depthwise, x)[0])
            _listen(part.depthwise_output, layer, lambda _, x: x)
    layers.append(Layer("output.weight", "output.bias"))
    _listen(network.blocks[-1], layers[-1], lambda _, x: x, after=True)
    return layers


def _offset(name: str, state: StateDict) -> str | None:
    known = (offset for offset in (f"{name}.norm.running_mean", f"{name}.conv.bias") if offset in state)
    return next(known, None)


def _listen(
    part: nn.Module, layer: Layer, inputs: Callable[[Any, Tensor], Tensor], *, after: bool = False
) -> None:
    """To what goes into a part of the network, or `after` it to what comes out: [groups, inputs, steps] of it."""
    if after:
        part.register_forward_hook(lambda part, given, made: layer.heard.add(inputs(part, made)))
    else:
        part.register_forward_pre_hook(lambda part, given: layer.heard.add(inputs(part, given[0])))


def _windows(unit: SubBlock, conv: nn.Conv1d, x: Tensor) -> Tensor:
    """What each tap of a convolution over time hears: [1, channels, time] to [1, channels, taps, steps]."""
    reach = (conv.kernel_size[0] - 1) * unit.dilation + 1
    windows = pad_time(x, unit.left, unit.right).unfold(-1, reach, unit.stride)[..., :: unit.dilation]
    return windows.mT
