"""Blocks that attend (`acoustic.network.layers`) as part of an ONNX graph.

Between a block's first and last node tensors are [rows, time, channels], as products and norms want them; what reaches
to the left or right is heard as elsewhere in the graph, [batch, channels, rows, time]. In INT8 the inputs of all
products and what is carried are rounded; the sums between the parts and the attention itself stay in FP32.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from acoustic.graph import Graph
from acoustic.network.layers import OUT_OF_REACH, Attention, FeedForward, GatedConvolution, Layers
from acoustic.network.parts import LayerNorm


def layers(graph: Graph, block: Layers, name: str, x: str, site: str) -> str:
    """The block's output."""
    x = graph.by_time(x)
    if block.enter is not None:
        x = graph.product(x, site, block.enter)
    for index, part in enumerate(block.parts()):
        part_name = f"{name}.parts.{index}"
        if isinstance(part, Attention):
            more = _attention(graph, part, part_name, x)
        elif isinstance(part, GatedConvolution):
            more = _gated(graph, part, part_name, x)
            if part.right:
                x = graph.by_time(graph.cut(graph.by_channel(x), part.out.out_channels, part.rate))
        else:
            more = _forward(graph, cast(FeedForward, part), part_name, x)
        x = graph.node("Add", x, more)
    return graph.by_channel(_normed(graph, block.last, x))


def _attention(graph: Graph, part: Attention, name: str, x: str) -> str:
    site = f"{name}.before"
    normed, channels = graph.site(site, _normed(graph, part.before, x)), part.out.in_channels
    queries = graph.product(normed, site, part.into, 0, channels)
    known = graph.by_channel(graph.product(normed, site, part.into, channels))
    known, zeros = graph.reached(graph.site(f"{name}.known", known), part)
    if zeros:
        known = graph.node("Pad", known, graph.constant(np.array([0, 0, 0, zeros, 0, 0, 0, 0])))
    known = graph.by_time(known)
    keys, values = graph.apart(known, 2, axis=2)
    width = channels // part.heads
    split = graph.constant(np.array([0, 0, part.heads, width]))
    queries = graph.node("Transpose", graph.node("Reshape", queries, split), perm=[0, 2, 1, 3])
    keys = graph.node("Transpose", graph.node("Reshape", keys, split), perm=[0, 2, 3, 1])
    values = graph.node("Transpose", graph.node("Reshape", values, split), perm=[0, 2, 1, 3])
    scale = graph.constant(np.array(width**-0.5, np.float32))
    scores = graph.node("Mul", graph.node("MatMul", queries, keys), scale)
    shares = graph.node("Softmax", graph.node("Add", scores, _reach(graph, part, x)), axis=-1)
    heard = graph.node("Transpose", graph.node("MatMul", shares, values), perm=[0, 2, 1, 3])
    heard = graph.node("Reshape", heard, graph.constant(np.array([0, 0, -1])))
    return graph.product(graph.site(f"{name}.heard", heard), f"{name}.heard", part.out)


def _reach(graph: Graph, part: Attention, x: str) -> str:
    """What is added to the scores [heads, steps, left + steps] (`acoustic.network.layers.places`)."""
    table = torch.nn.functional.pad(part.distance[:, 0].detach().float(), (1, 1), value=OUT_OF_REACH)
    steps = graph.node("Gather", graph.node("Shape", x), graph.constant(np.array(1)), axis=0)
    whole = graph.node("Add", steps, graph.constant(np.array(part.left)))
    zero, one = graph.constant(np.array(0)), graph.constant(np.array(1))
    columns = graph.node("Range", zero, whole, one)
    rows = graph.node("Unsqueeze", graph.node("Range", zero, steps, one), graph.constant(np.array([1])))
    places = graph.node("Add", graph.node("Sub", columns, rows), one)
    bounded = graph.node("Clip", places, zero, graph.constant(np.array(part.left + 2)))
    return graph.node("Gather", graph.constant(table), bounded, axis=1)


def _gated(graph: Graph, part: GatedConvolution, name: str, x: str) -> str:
    site = f"{name}.before"
    normed, channels = graph.site(site, _normed(graph, part.before, x)), part.out.in_channels
    signal = graph.product(normed, site, part.gate, 0, channels)
    gate = graph.product(normed, site, part.gate, channels)
    gated = graph.by_channel(graph.node("Mul", signal, graph.node("Sigmoid", gate)))
    gated, left = graph.reached(graph.site(f"{name}.gated", gated), part)
    slid = graph.convolution(
        gated,
        f"{name}.gated",
        part.depthwise.weight,
        None,
        group=len(part.depthwise.weight),
        pads=[0, left, 0, part.right],
    )
    slid = _normed(graph, part.between, graph.by_time(graph.site(f"{name}.depthwise", slid)))
    slid = graph.node("Mul", slid, graph.node("Sigmoid", slid))
    return graph.product(graph.site(f"{name}.slid", slid), f"{name}.slid", part.out)


def _forward(graph: Graph, part: FeedForward, name: str, x: str) -> str:
    site = f"{name}.before"
    wide = graph.product(graph.site(site, _normed(graph, part.before, x)), site, part.wider)
    wide = graph.node("Relu", wide)
    wide = graph.site(f"{name}.wide", graph.node("Mul", wide, wide))
    return graph.product(wide, f"{name}.wide", part.out)


def _normed(graph: Graph, norm: LayerNorm, x: str) -> str:
    weights: tuple[Tensor, Tensor] = (norm.weight.float(), norm.bias.float())
    return graph.node("LayerNormalization", x, *map(graph.constant, weights), axis=-1, epsilon=norm.epsilon)
