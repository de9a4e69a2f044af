"""The ONNX graph of a stream with carried state: a window without left context, and the state instead of it.

    features [rows, mels, frames], state [rows, values], hop [1], wanted [1]  ->  log_probs, next_state

Every convolution that reaches to the left (an attention: its keys and values) finds its inputs of before the window in
`state`, and leaves those of before the next one (`hop` frames on) in `next_state`. What lies beyond `wanted` frames
and the look-ahead that the layers to come still need is cut away: whoever wants it all asks for more frames than
there are.
In INT8 the state is the 8-bit numbers themselves: rounding does not depend on where windows begin.
"""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from acoustic.export import Graph
from acoustic.network.parts import Reaching

METADATA_KEY = "silica.state"


@dataclass(frozen=True)
class Piece:
    """What one convolution or attention carries: so many steps of all its channels."""

    steps: int
    zero: int
    """The 8-bit number that stands for zero."""
    following: str
    """The tensor of the next window's piece."""


@dataclass
class CarriedGraph(Graph):
    """A graph whose left context is an input. Streams are rows: [1, channels, rows, time] everywhere."""

    lone: ClassVar[int] = 0
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    """By channels: pieces of equal height travel as one."""
    _rounded: dict[str, tuple[str, tuple[str, str]]] = field(default_factory=dict)
    _cut_to: dict[str, int] = field(default_factory=dict)
    _frames: dict[tuple[str, int, int], str] = field(default_factory=dict)
    _ahead: int = 0
    _rate: int = 1
    _loose: bool = False
    _turned: bool = False
    """The 8-bit kernels want [1, rows, time, channels]: so is what is carried in INT8, and nothing is turned round."""

    def __post_init__(self) -> None:
        self._ahead = self.config.look_ahead_frames
        self._turned = self.ranges is not None

    def begin(self) -> str:
        one = self.node("Unsqueeze", "features", self.constant(np.array([0])))
        return self.node("Transpose", one, perm=[0, 2, 1, 3])

    def restored(self, rounded: str, steps: tuple[str, str]) -> str:
        if self._loose:
            rounded = self._shortened(rounded, self._rate)
        name = super().restored(rounded, steps)
        self._rounded[name] = (rounded, steps)
        return name

    def site(self, name: str, tensor: str) -> str:
        """Also where a tensor is cut: in INT8 between rounding and restoring, which the fast kernels allow."""
        tensor = super().site(name, tensor)
        if self._loose and self.ranges is None:
            tensor = self._shortened(tensor, self._rate)
        self._loose = False
        self._cut_to[tensor] = self._ahead
        return tensor

    def cut(self, x: str, rate: int) -> str:
        if self._cut_to.get(x) == self._ahead:
            return x
        if x in self._rounded:
            rounded, steps = self._rounded[x]
            rounded = self._shortened(rounded, rate)
            x = self.node("DequantizeLinear", rounded, *steps)
            self._rounded[x] = (rounded, steps)
        else:
            x = self._shortened(x, rate)
        self._cut_to[x] = self._ahead
        return x

    def reached(self, x: str, unit: Reaching) -> tuple[str, int]:
        self._ahead -= unit.right * unit.rate
        self._rate = unit.rate * unit.stride
        self._loose = unit.right > 0
        if not unit.left:
            return x, 0
        channels = unit.reaching_channels
        rounded, steps = self._rounded.get(x, (x, None))
        pieces = self.pieces.setdefault(channels, [])
        name = f"state_{channels}_{len(pieces)}"
        axis = 2 if self._turned else 3
        if self._turned:
            rounded = self.node("Transpose", rounded, perm=[0, 2, 3, 1])
        whole = self.node("Concat", name, rounded, axis=axis)
        begin, end = self._at("hop", unit.rate, 0), self._at("hop", unit.rate, unit.left)
        following = self.node("Slice", whole, begin, end, self.constant(np.array([axis])))
        if self._turned:
            whole = self.node("Transpose", whole, perm=[0, 3, 1, 2])
        zero = 0
        if steps is not None:
            zero = self._zero_of(steps[1])
            whole = self.node("DequantizeLinear", whole, *steps)
        pieces.append(Piece(unit.left, zero, following))
        return whole, 0

    def rows(self) -> str:
        shape = self.node("Shape", "state")
        return self.node("Slice", shape, self.constant(np.array([0])), self.constant(np.array([1])))

    def finish(self, x: str) -> str:
        """[1, channels, rows, steps] to [rows, 1, steps, channels], and the state tied up."""
        self._tie_up()
        if self._loose:
            x = self._shortened(x, self._rate)
        return self.node("Transpose", x, perm=[2, 0, 3, 1])

    def ports(self) -> tuple[list[Any], list[Any]]:
        kind = TensorProto.FLOAT if self.ranges is None else TensorProto.UINT8
        size = sum(channels * piece.steps for channels, pieces in self.pieces.items() for piece in pieces)
        inputs, outputs = super().ports()
        return (
            [
                *inputs,
                helper.make_tensor_value_info("state", kind, ["batch", size]),
                helper.make_tensor_value_info("hop", TensorProto.INT64, [1]),
                helper.make_tensor_value_info("wanted", TensorProto.INT64, [1]),
            ],
            [*outputs, helper.make_tensor_value_info("next_state", kind, ["batch", size])],
        )

    @property
    def model(self) -> Any:
        """The finished model; what an empty state looks like is in its metadata."""
        model = super().model
        table = [
            [channels, [[piece.steps, piece.zero] for piece in pieces]]
            for channels, pieces in self.pieces.items()
        ]
        helper.set_model_props(model, {METADATA_KEY: json.dumps(table)})
        return model

    def _tie_up(self) -> None:
        """`state` to the pieces (nodes in front of everything), the following pieces to `next_state`."""
        before: list[Any] = []
        sizes = [channels * sum(p.steps for p in pieces) for channels, pieces in self.pieces.items()]
        groups = [f"state_{channels}" for channels in self.pieces]
        before.append(
            helper.make_node(
                "Split", ["state", self.constant(np.array(sizes))], groups, name="split_state", axis=1
            )
        )
        followings = []
        for (channels, pieces), group in zip(self.pieces.items(), groups, strict=True):
            steps = [piece.steps for piece in pieces]
            axis = 2 if self._turned else 3
            rows = [1, -1, sum(steps), channels] if self._turned else [1, -1, channels, sum(steps)]
            before.append(
                helper.make_node("Reshape", [group, self.constant(np.array(rows))], [f"{group}_apart"])
            )
            if not self._turned:
                before.append(
                    helper.make_node("Transpose", [f"{group}_apart"], [f"{group}_rows"], perm=[0, 2, 1, 3])
                )
            names = [f"{group}_{index}" for index in range(len(pieces))]
            before.append(
                helper.make_node(
                    "Split",
                    [f"{group}_apart" if self._turned else f"{group}_rows", self.constant(np.array(steps))],
                    names,
                    axis=axis,
                )
            )
            joined = self.node("Concat", *(piece.following for piece in pieces), axis=axis)
            if not self._turned:
                joined = self.node("Transpose", joined, perm=[0, 2, 1, 3])
            flat = self.constant(np.array([-1, channels * sum(steps)]))
            followings.append(self.node("Reshape", joined, flat))
        self.nodes[:0] = before
        self.nodes.append(helper.make_node("Concat", followings, ["next_state"], name="next_state", axis=1))

    def _shortened(self, x: str, rate: int) -> str:
        end = self._at("wanted", rate, self._ahead // rate)
        return self.node("Slice", x, self.constant(np.array([0])), end, self.constant(np.array([3])))

    def _at(self, frames: str, rate: int, more: int) -> str:
        """The position `frames / rate + more`, computed once."""
        key = (frames, rate, more)
        if key not in self._frames:
            name = frames
            if more:
                name = self.node("Add", self._at(frames, rate, 0), self.constant(np.array([more])))
            elif rate > 1:
                name = self.node("Div", frames, self.constant(np.array([rate])))
            self._frames[key] = name
        return self._frames[key]

    def _zero_of(self, name: str) -> int:
        constant = next(each for each in self.constants if each.name == name)
        return int(numpy_helper.to_array(constant))


def empty_state(table: str, rounded: bool) -> NDArray[Any]:
    """The state before a stream's first window: the zeros that a whole recording is padded with."""
    parts: list[NDArray[Any]] = []
    for channels, pieces in json.loads(table):
        row = np.repeat([zero for _, zero in pieces], [steps for steps, _ in pieces])
        parts.append(np.repeat(row, channels) if rounded else np.tile(row, channels))
    empty: NDArray[Any] = np.concatenate(parts).astype(np.uint8 if rounded else np.float32)
    return empty
