"""From a checkpoint to ONNX: FP32, or INT8 where the activations' ranges are known
(`acoustic.quantization.calibration`).

The file stands alone: normalized features [batch, mels, frames] in, natural-log probabilities
[batch, outputs, classes] out, batch and time free. All items of a batch have the same number of frames: there
are no masks.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from onnx import helper
from torch import Tensor

from acoustic.checkpoint import Checkpoint
from acoustic.export.graph import Branch, Graph, Ranges
from acoustic.export.streaming import StreamingGraph
from acoustic.files import write_file
from acoustic.network.folding import fold
from acoustic.network.modules import ConvNorm, LayerNorm, SubBlock
from acoustic.network.network import Block, Network


def export_onnx(
    checkpoint: Checkpoint,
    path: str | Path,
    ranges: Ranges | None = None,
    *,
    stateful: bool = False,
    half: bool = False,
) -> Path:
    """Write the model as one ONNX file, INT8 when ranges are given. It appears whole or not at all.

    half: weights are stored in FP16 and restored when the file is opened; sums stay in FP32.
    """
    target = Path(path)
    write_file(target, onnx_bytes(checkpoint, ranges, stateful=stateful, half=half))
    return target


def onnx_bytes(
    checkpoint: Checkpoint,
    ranges: Ranges | None = None,
    *,
    stateful: bool = False,
    half: bool = False,
) -> bytes:
    """The ONNX file's content. carried: the graph of a stream with carried state (`acoustic.export.streaming`)."""
    kind = StreamingGraph if stateful else Graph
    graph = build_graph(checkpoint, ranges, kind, half=half)
    return cast(bytes, graph.model.SerializeToString())


@torch.no_grad()
def build_graph(
    checkpoint: Checkpoint,
    ranges: Ranges | None = None,
    kind: type[Graph] = Graph,
    *,
    half: bool = False,
) -> Graph:
    """The whole network as a graph."""
    network = fold(checkpoint).network()
    graph = kind(network.config, ranges, half)
    branches = [Branch(graph.site("features", graph.begin()), "features", network.config.features.mels)]
    for index, block in enumerate(network.blocks):
        name = f"blocks.{index}"
        last = index == len(network.blocks) - 1
        assert isinstance(block, Block)
        out = _block(graph, block, name, branches, last=last)
        branch = Branch(out, name, network.config.blocks[index].channels)
        branches = [*branches, branch] if network.keeps_all_branches and index else [branch]
    _output(graph, network, branches[-1].x)
    return graph


def _block(graph: Graph, block: Block, name: str, branches: Sequence[Branch], *, last: bool) -> str:
    """The block's output; its site is the block's name."""
    given = branches[-1]
    first = cast(SubBlock, block.units[0])
    rates = [first.rate // step for step in block.steps]
    if block.joins and len(branches) > 1:
        pieces = [
            _every(graph, graph.cut(branch.x, branch.channels, rate, step), step)
            for branch, rate, step in zip(branches, rates, block.steps, strict=True)
        ]
        site = f"{name}.joined"
        joined = graph.site(site, graph.node("Concat", *pieces, axis=1))
        given = Branch(joined, site, sum(branch.channels for branch in branches))
    x, site = given.x, given.site
    for index, unit in enumerate(block.units):
        assert isinstance(unit, SubBlock)
        unit_name = f"{name}.units.{index}"
        x = _unit(graph, unit, unit_name, x, site, last=last and index == len(block.units) - 1)
        if index < len(block.units) - 1:
            site = f"{unit_name}.out"
            x = graph.site(site, _activated(graph, x, block.activation, rounded=graph.ranges is not None))
    if block.identity or len(block.bypasses):
        x = graph.site(f"{name}.main", x)
    terms = [graph.cut(given.x, given.channels, first.rate)] if block.identity else []
    for index, bypass in enumerate(block.bypasses):
        assert isinstance(bypass, ConvNorm)
        source = branches[index] if block.dense else given
        rate, step = rates[index] if block.dense else first.rate, cast(int, bypass.stride)
        beside = _every(graph, graph.cut(source.x, source.channels, rate, step), step)
        weight, offset = _weights(bypass)
        term = graph.convolution(beside, source.site, weight, offset)
        terms.append(graph.site(f"{name}.bypasses.{index}", _normed(graph, bypass, term)))
    for index, term in enumerate(terms):
        x = graph.node("Add", x, term)
        if index < len(terms) - 1:
            x = graph.site(f"{name}.sums.{index}", x)
    # The last block feeds only the output layer, which stays in FP32.
    rounded = graph.ranges is not None and not last
    x = _activated(graph, x, block.activation, rounded=rounded)
    return x if last else graph.site(name, x)


def _unit(graph: Graph, unit: SubBlock, name: str, x: str, site: str, *, last: bool) -> str:
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
        x = graph.by_channel(graph.product(graph.by_time(x), cast(torch.nn.Conv1d, unit.conv)))
    else:
        x = graph.convolution(x, site, weight, offset, **settings)
    x = _normed(graph, unit, x)
    return x if unit.groups == 1 else _shuffled(graph, x, unit.groups, len(weight))


def _weights(normed: ConvNorm) -> tuple[Tensor, Tensor | None]:
    return normed.conv.weight, normed.conv.bias


def _normed(graph: Graph, normed: ConvNorm, x: str) -> str:
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
