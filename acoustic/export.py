"""From a checkpoint to ONNX: FP32, or INT8 where the activations' ranges are known (`acoustic.calibration`).

The file stands alone: normalised features [batch, mels, frames] in, natural-log probabilities
[batch, outputs, classes] out, batch and time free. All items of a batch have the same number of frames: there
are no masks.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from acoustic.checkpoint import LARGEST_WEIGHT, Checkpoint
from acoustic.errors import AcousticError
from acoustic.folding import fold
from acoustic.network.assemble import Block, Network
from acoustic.network.layers import Layers
from acoustic.network.parts import LayerNorm, Normed, Reaching, Unit
from acoustic.shape import ModelConfig

Range = tuple[float, float]
Ranges = Mapping[str, Range]
Value = NDArray[Any]

OPSET = 17


def export_onnx(
    checkpoint: Checkpoint,
    path: str | Path,
    ranges: Ranges | None = None,
    *,
    carried: bool = False,
    half: bool = False,
) -> Path:
    """Write the model as one ONNX file, INT8 when ranges are given. It appears whole or not at all.

    half: weights are stored in FP16 and restored when the file is opened; sums stay in FP32.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(onnx_bytes(checkpoint, ranges, carried=carried, half=half))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def onnx_bytes(
    checkpoint: Checkpoint,
    ranges: Ranges | None = None,
    *,
    carried: bool = False,
    half: bool = False,
    hidden: int | None = None,
) -> bytes:
    """The ONNX file's content. carried: the graph of a stream with carried state (`acoustic.export_carried`).

    hidden: what the block of this number makes is a second output, [batch, channels, 1, steps].
    """
    kind = Graph
    if carried:
        from acoustic.export_carried import CarriedGraph

        kind = CarriedGraph
    graph = build_graph(checkpoint, ranges, kind, half=half, hidden=hidden)
    return cast(bytes, graph.model.SerializeToString())


@dataclass
class Graph:
    """An ONNX graph under construction. `sites` names the tensors whose range INT8 must know."""

    lone: ClassVar[int] = 1
    """Which dimension of [batch, rows, time, channels] is always one."""
    config: ModelConfig
    ranges: Ranges | None
    half: bool = False
    """Weights that are not INT8 are stored in FP16."""
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    sites: dict[str, str] = field(default_factory=dict)
    hidden: tuple[str, int] | None = None
    """A tensor that is a second output, and its channels."""

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its (one) output."""
        name = f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], name=name, **attributes))
        return name

    def apart(self, x: str, parts: int, axis: int) -> list[str]:
        """A tensor in so many equal parts."""
        names = [f"{x}_{part}" for part in range(parts)]
        self.nodes.append(helper.make_node("Split", [x], names, name=f"split_{x}", axis=axis))
        return names

    def constant(self, value: Value | Tensor) -> str:
        """Add a constant; its name."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def site(self, name: str, tensor: str) -> str:
        """A tensor that INT8 rounds to 8 bits; in FP32 only its name is noted."""
        self.sites[name] = tensor
        if self.ranges is None:
            return tensor
        scale, zero = self._step(name)
        steps = (self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, np.uint8)))
        return self.restored(self.node("QuantizeLinear", tensor, *steps), steps)

    def restored(self, rounded: str, steps: tuple[str, str]) -> str:
        """8-bit numbers as the numbers they stand for."""
        return self.node("DequantizeLinear", rounded, *steps)

    # What a graph for streams with carried state does otherwise (`acoustic.export_carried`).

    def begin(self) -> str:
        """The features as [batch, mels, 1, frames]."""
        return self.node("Unsqueeze", "features", self.constant(np.array([2])))

    def reached(self, x: str, unit: Reaching) -> tuple[str, int]:
        """What is heard, and how many zeros belong to its left."""
        return x, unit.left

    def cut(self, x: str, rate: int) -> str:
        """An earlier tensor, no longer than what the newest ones still need of it."""
        return x

    def rows(self) -> str:
        """The third dimension of every tensor, as a constant for shapes."""
        return self.constant(np.array([1]))

    def by_time(self, x: str) -> str:
        """A tensor as [rows, time, channels]."""
        turned = self.node("Transpose", x, perm=[0, 2, 3, 1])
        return self.node("Squeeze", turned, self.constant(np.array([self.lone])))

    def by_channel(self, x: str) -> str:
        """The reverse."""
        whole = self.node("Unsqueeze", x, self.constant(np.array([self.lone])))
        return self.node("Transpose", whole, perm=[0, 3, 1, 2])

    def finish(self, x: str) -> str:
        """[batch, channels, 1, steps] to [batch, 1, steps, channels]."""
        return self.node("Transpose", x, perm=[0, 2, 3, 1])

    def ports(self) -> tuple[list[Any], list[Any]]:
        """Inputs and outputs of the whole graph."""
        mels, classes = self.config.features.mels, self.config.classes
        outputs = [
            helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["batch", "outputs", classes])
        ]
        if self.hidden:
            name, channels = self.hidden
            outputs.append(
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", channels, 1, "steps"])
            )
        features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", mels, "frames"])
        return [features], outputs

    def convolution(self, x: str, x_site: str, weight: Tensor, bias: Tensor | None, **attributes: Any) -> str:
        """A convolution over time, in [batch, channels, 1, time]: the fast kernels are the 2-D ones."""
        kernel = weight.detach().float().numpy()[:, :, None, :]
        offset = None if bias is None else bias.detach().float().numpy()
        if self.ranges is None:
            inputs = [self.weights(kernel)] + ([] if offset is None else [self.constant(offset)])
        else:
            inputs = self._rounded_weights(x_site, kernel, offset)
        return self.node("Conv", x, *inputs, kernel_shape=[1, kernel.shape[-1]], **attributes)

    def product(
        self, x: str, x_site: str, layer: torch.nn.Conv1d, first: int = 0, end: int | None = None
    ) -> str:
        """Channels mixed step by step, in [rows, time, channels]; of those that come out a part where asked for."""
        matrix = layer.weight.detach().float().numpy()[first:end, :, 0].T
        if self.ranges is None:
            weights = self.weights(matrix)
        else:
            scale = np.maximum(np.abs(matrix).max(axis=0) / LARGEST_WEIGHT, 1e-12).astype(np.float32)
            whole = self.constant(np.round(matrix / scale).astype(np.int8))
            per_column = (self.constant(scale), self.constant(np.zeros(len(scale), np.int8)))
            weights = self.node("DequantizeLinear", whole, *per_column, axis=1)
        assert layer.bias is not None
        return self.node("Add", self.node("MatMul", x, weights), self.constant(layer.bias[first:end].float()))

    def weights(self, kernel: Value) -> str:
        """A constant that FP16 files store in 16 bits."""
        if not self.half:
            return self.constant(kernel)
        return self.node("Cast", self.constant(kernel.astype(np.float16)), to=TensorProto.FLOAT)

    def _rounded_weights(self, x_site: str, kernel: Value, offset: Value | None) -> list[str]:
        scale = np.abs(kernel).reshape(kernel.shape[0], -1).max(axis=1) / LARGEST_WEIGHT
        if offset is not None:
            # Weights near nought beside a plain offset: in such fine steps 32 bits would not hold the offset.
            scale = np.maximum(scale, np.abs(offset).reshape(-1) / (self._step(x_site)[0] * 2.0**30))
        scale = np.maximum(scale, 1e-12).astype(np.float32)
        whole = np.round(kernel / scale[:, None, None, None]).astype(np.int8)
        per_channel = (self.constant(scale), self.constant(np.zeros(len(scale), np.int8)))
        inputs = [self.node("DequantizeLinear", self.constant(whole), *per_channel, axis=0)]
        if offset is not None:
            product = (scale.astype(np.float64) * self._step(x_site)[0]).astype(np.float32)
            steps = np.clip(np.round(offset / product), -(2**31), 2**31 - 1).astype(np.int32)
            zeros = self.constant(np.zeros(len(scale), np.int32))
            inputs.append(
                self.node("DequantizeLinear", self.constant(steps), self.constant(product), zeros, axis=0)
            )
        return inputs

    def _step(self, name: str) -> tuple[float, int]:
        """Scale and zero point of an activation: zero itself is always hit exactly."""
        assert self.ranges is not None
        if name not in self.ranges:
            raise AcousticError(
                f"The INT8 ranges do not know {name}: they were measured for another model. Run `silica calibrate`."
            )
        low, high = min(self.ranges[name][0], 0.0), max(self.ranges[name][1], 0.0)
        scale = max((high - low) / 255.0, 1e-12)
        return scale, round(-low / scale)

    @property
    def model(self) -> Any:
        """The finished, checked model."""
        inputs, outputs = self.ports()
        graph = helper.make_graph(self._needed([port.name for port in outputs]), "silica", inputs, outputs, self.constants)
        model = helper.make_model(
            graph, producer_name="silica", opset_imports=[helper.make_opsetid("", OPSET)]
        )
        model.ir_version = 9
        onnx.checker.check_model(model)
        return model

    def _needed(self, outputs: Sequence[str]) -> list[Any]:
        """The nodes that anything comes of: ONNX Runtime would run the others too."""
        wanted, kept = set(outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                wanted.update(node.input)
                kept.append(node)
        return kept[::-1]


@torch.no_grad()
def build_graph(
    checkpoint: Checkpoint,
    ranges: Ranges | None = None,
    kind: type[Graph] = Graph,
    *,
    half: bool = False,
    hidden: int | None = None,
) -> Graph:
    """The whole network as a graph."""
    network = fold(checkpoint).network()
    from acoustic.export_layers import layers

    graph = kind(network.config, ranges, half)
    panes = [(graph.site("features", graph.begin()), "features")]
    for index, block in enumerate(network.blocks):
        name = f"blocks.{index}"
        last = index == len(network.blocks) - 1
        if isinstance(block, Layers):
            out = layers(graph, block, name, *panes[-1])
            out = out if last else graph.site(name, out)
        else:
            assert isinstance(block, Block)
            out = _block(graph, block, name, panes, last=last)
        if index == hidden:
            graph.hidden = (out, network.config.blocks[index].channels)
        panes = [*panes, (out, name)] if network.keeps_panes and index else [(out, name)]
    _output(graph, network, panes[-1][0])
    if hidden is not None and graph.hidden is None:
        raise AcousticError(
            f"{network.config.name} has no block {hidden}: they are numbered 0 to {len(network.blocks) - 1}."
        )
    return graph


def _block(graph: Graph, block: Block, name: str, panes: Sequence[tuple[str, str]], *, last: bool) -> str:
    """The block's output; its site is the block's name."""
    x, site = panes[-1]
    first = cast(Unit, block.units[0])
    rates = [first.rate // step for step in block.steps]
    if block.joins and len(panes) > 1:
        cut = [graph.cut(pane, rate) for (pane, _), rate in zip(panes, rates, strict=True)]
        pieces = [_every(graph, pane, step) for pane, step in zip(cut, block.steps, strict=True)]
        site = f"{name}.joined"
        x = graph.site(site, graph.node("Concat", *pieces, axis=1))
    block_input, input_site = x, site
    for index, unit in enumerate(block.units):
        assert isinstance(unit, Unit)
        unit_name = f"{name}.units.{index}"
        x = _unit(graph, unit, unit_name, x, site, last=last and index == len(block.units) - 1)
        if index < len(block.units) - 1:
            site = f"{unit_name}.out"
            x = graph.site(site, _activated(graph, x, block.activation, rounded=graph.ranges is not None))
    if block.identity or len(block.bypasses):
        x = graph.site(f"{name}.main", x)
    terms = [graph.cut(block_input, first.rate)] if block.identity else []
    for index, bypass in enumerate(block.bypasses):
        assert isinstance(bypass, Normed)
        source, source_site = panes[index] if block.dense else (block_input, input_site)
        source = graph.cut(source, rates[index] if block.dense else first.rate)
        weight, offset = _weights(bypass)
        term = graph.convolution(_every(graph, source, cast(int, bypass.stride)), source_site, weight, offset)
        terms.append(graph.site(f"{name}.bypasses.{index}", _normed(graph, bypass, term)))
    for index, term in enumerate(terms):
        x = graph.node("Add", x, term)
        if index < len(terms) - 1:
            x = graph.site(f"{name}.sums.{index}", x)
    # The last block feeds only the output layer, which stays in FP32.
    rounded = graph.ranges is not None and not last
    x = _activated(graph, x, block.activation, rounded=rounded)
    return x if last else graph.site(name, x)


def _unit(graph: Graph, unit: Unit, name: str, x: str, site: str, *, last: bool) -> str:
    x, left = graph.reached(x, unit)
    settings: dict[str, Any] = {"pads": [0, left, 0, unit.right], "strides": [1, unit.stride]}
    settings["dilations"] = [1, unit.dilation]
    weight, offset = _weights(unit)
    if unit.depthwise is not None:
        taps = unit.depthwise.weight
        x = graph.convolution(x, site, taps, None, group=len(taps), **settings)
        site, settings = f"{name}.depthwise", {"group": unit.groups}
        x = graph.site(site, x)
    mixes = weight.shape[2] == 1 and (unit.depthwise is not None or unit.stride == 1)
    if last and mixes and unit.groups == 1 and offset is not None:
        # What comes last is rounded no more: a convolution would sum it in an order that depends on how many steps are.
        x = graph.by_channel(graph.product(graph.by_time(x), site, cast(torch.nn.Conv1d, unit.conv)))
    else:
        x = graph.convolution(x, site, weight, offset, **settings)
    x = _normed(graph, unit, x)
    return x if unit.groups == 1 else _shuffled(graph, x, unit.groups, len(weight))


def _weights(normed: Normed) -> tuple[Tensor, Tensor | None]:
    return normed.conv.weight, normed.conv.bias


def _normed(graph: Graph, normed: Normed, x: str) -> str:
    """Layer norm over the channels; batch norm is already folded, weight norm is in the weights."""
    norm = normed.norm
    if not isinstance(norm, LayerNorm):
        return x
    swapped = graph.node("Transpose", x, perm=[0, 2, 3, 1])
    scaled = graph.node(
        "LayerNormalization",
        swapped,
        graph.constant(norm.weight),
        graph.constant(norm.bias),
        axis=-1,
        epsilon=norm.epsilon,
    )
    return graph.node("Transpose", scaled, perm=[0, 3, 1, 2])


def _activated(graph: Graph, x: str, kind: str, *, rounded: bool) -> str:
    if kind == "relu":
        # Rounding to 8 bits with the range [0, high] cuts off what is negative all by itself.
        return x if rounded else graph.node("Relu", x)
    if kind == "clipped_relu":
        return graph.node("Clip", x, *(graph.constant(np.array(end, np.float32)) for end in (0.0, 20.0)))
    if kind == "leaky_relu":
        return graph.node("LeakyRelu", x, alpha=0.01)
    signal, gate = graph.apart(x, 2, axis=1)
    if kind == "gau":
        signal = graph.node("Tanh", signal)
    return graph.node("Mul", signal, graph.node("Sigmoid", gate))


def _every(graph: Graph, x: str, step: int) -> str:
    if step == 1:
        return x
    bounds = (np.array([0]), np.array([np.iinfo(np.int64).max]), np.array([3]), np.array([step]))
    return graph.node("Slice", x, *(graph.constant(bound) for bound in bounds))


def _shuffled(graph: Graph, x: str, groups: int, channels: int) -> str:
    apart = graph.node("Reshape", x, graph.constant(np.array([0, groups, channels // groups, -1])))
    swapped = graph.node("Transpose", apart, perm=[0, 2, 1, 3])
    shape = (graph.constant(np.array([0, channels])), graph.rows(), graph.constant(np.array([-1])))
    return graph.node("Reshape", swapped, graph.node("Concat", *shape, axis=0))


def _output(graph: Graph, network: Network, x: str) -> None:
    config = network.config
    weight = network.output.weight.detach().float().numpy()[:, :, 0].T
    bias = network.output.bias
    assert bias is not None
    x = graph.node("MatMul", graph.finish(x), graph.weights(weight))
    x = graph.node("Add", x, graph.constant(bias))
    scores = graph.node("Reshape", x, graph.constant(np.array([0, -1, config.classes])))
    log_probs = helper.make_node("LogSoftmax", [scores], ["log_probs"], name="log_probs", axis=-1)
    graph.nodes.append(log_probs)
