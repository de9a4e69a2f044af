"""An ONNX graph under construction: nodes, constants, and where INT8 rounds. What a network is made of comes from
`acoustic.export.onnx`; `acoustic.export.streaming` has the kind that carries state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from acoustic.checkpoint import MAX_WEIGHT
from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.network.modules import SubBlock

Range = tuple[float, float]
Ranges = Mapping[str, Range]
Value = NDArray[Any]

OPSET = 17


class Branch(NamedTuple):
    """What a block makes: its tensor, the site it is rounded at, how many channels high."""

    x: str
    site: str
    channels: int


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

    # What a graph for streams with carried state does otherwise (`acoustic.export.streaming`).

    def begin(self) -> str:
        """The features as [batch, mels, 1, frames]."""
        return self.node("Unsqueeze", "features", self.constant(np.array([2])))

    def reached(self, x: str, unit: SubBlock) -> tuple[str, int]:
        """What is heard, and how many zeros belong to its left."""
        return x, unit.left

    def cut(self, x: str, channels: int, rate: int, step: int = 1) -> str:
        """An earlier tensor at `rate` frames a step, beside the newest ones: they run at every `step`-th."""
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

    def product(self, x: str, layer: torch.nn.Conv1d) -> str:
        """A pointwise convolution as a matrix product, in [rows, time, channels]."""
        matrix = layer.weight.detach().float().numpy()[:, :, 0].T
        if self.ranges is None:
            weights = self.weights(matrix)
        else:
            scale = np.maximum(np.abs(matrix).max(axis=0) / MAX_WEIGHT, 1e-12).astype(np.float32)
            whole = self.constant(np.round(matrix / scale).astype(np.int8))
            per_column = (self.constant(scale), self.constant(np.zeros(len(scale), np.int8)))
            weights = self.node("DequantizeLinear", whole, *per_column, axis=1)
        assert layer.bias is not None
        return self.node("Add", self.node("MatMul", x, weights), self.constant(layer.bias.float()))

    def weights(self, kernel: Value) -> str:
        """A constant that FP16 files store in 16 bits."""
        if not self.half:
            return self.constant(kernel)
        return self.node("Cast", self.constant(kernel.astype(np.float16)), to=TensorProto.FLOAT)

    def _rounded_weights(self, x_site: str, kernel: Value, offset: Value | None) -> list[str]:
        scale = np.abs(kernel).reshape(kernel.shape[0], -1).max(axis=1) / MAX_WEIGHT
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
        graph = helper.make_graph(
            self._needed([port.name for port in outputs]), "silica", inputs, outputs, self.constants
        )
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
