"""The ONNX graph of a stream with carried state: no left context is heard again, and nothing that lies ahead.

    features [rows, mels, frames], state [rows, values], places [any]  ->  log_probs, next_state

A run takes the frames that no earlier run has taken, and nothing is computed twice: each convolution finds in `state`
the inputs that it still needs, those before its outputs and those that lay ahead when the run before ended, and leaves
those of the next run in `next_state`. A shortcut past convolutions that look ahead is as late as they are, by steps
that are carried too. Where tensors are cut depends on the run: `StateLayout.places` says so.

In INT8 the state is the 8-bit numbers themselves: rounding does not depend on where runs begin.
"""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from acoustic.export.graph import Graph
from acoustic.network.modules import SubBlock

METADATA_KEY = "silica.state"
BY_CHANNEL, BY_TIME = [0, 3, 1, 2], [0, 2, 3, 1]
"""Between [1, channels, rows, time] and [1, rows, time, channels]: what 8-bit kernels read and is carried for them."""


@dataclass(frozen=True)
class Piece:
    """What one convolution or shortcut carries: so many steps of all its channels."""

    steps: int
    zero: int
    """The 8-bit number that stands for zero."""
    following: str
    """The tensor of the next run's piece."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is cut: `fresh` in a stream's first run and `steady` in every other. With a rate it lies as many
    steps of `rate` frames further on as are due, each counted `times`; `ahead` steps are due before the hop is full."""

    fresh: int
    steady: int
    rate: int = 0
    ahead: int = 0
    times: int = 1

    def at(self, frames: int, first: bool, last: bool) -> int:
        """For a run that completes `frames`, and is all that is left where it is the last."""
        place = self.fresh if first else self.steady
        if self.rate:
            due = -(-frames // self.rate) if last else frames // self.rate + self.ahead
            place += (due - (0 if first else self.ahead)) * self.times
        return place


@dataclass(frozen=True)
class StateLayout:
    """How a graph's state lies, and where it cuts: kept in its metadata."""

    pieces: list[tuple[int, list[tuple[int, int]]]]
    """By channels: steps and zero of each piece."""
    cuts: list[Place]

    @classmethod
    def read(cls, text: str) -> "StateLayout":
        """From the metadata."""
        kept = json.loads(text)
        return cls(kept["pieces"], [Place(*place) for place in kept["places"]])

    def places(self, frames: int, *, first: bool = False, last: bool = False) -> NDArray[np.int64]:
        """For the graph: a run that completes that many frames, or (`last`) the rest of so many."""
        return np.array([place.at(frames, first, last) for place in self.cuts], np.int64)

    def empty(self, rounded: bool) -> NDArray[Any]:
        """The state before a stream's first run: the zeros that a whole recording is padded with."""
        parts: list[NDArray[Any]] = []
        for channels, pieces in self.pieces:
            row = np.repeat([zero for _, zero in pieces], [steps for steps, _ in pieces])
            if rounded:
                parts.append(np.repeat(row, channels).astype(np.uint8))
            else:
                parts.append(np.tile(row, channels).astype(np.float32))
        return np.concatenate(parts)


@dataclass
class StreamingGraph(Graph):
    """A graph that goes on where the run before it ended. Streams are rows: [1, channels, rows, time] everywhere."""

    lone: ClassVar[int] = 0
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    """By channels: pieces of equal height travel as one."""
    cuts: list[Place] = field(default_factory=list)
    _rounded: dict[str, tuple[str, tuple[str, str]]] = field(default_factory=dict)
    _made_at: dict[str, int] = field(default_factory=dict)
    """How many frames ahead a tensor is."""
    _whole: dict[str, tuple[str, int]] = field(default_factory=dict)
    """A tensor with what is carried of it in front, and how many steps those are."""
    _ahead: int = 0
    _before: int = 0
    """How many frames ahead was what the last one that reaches has heard."""
    _trim: tuple[str, str] | None = None
    """Where to cut what comes of the last convolution; in INT8 as soon as it is rounded, which the kernels allow."""

    def __post_init__(self) -> None:
        self._ahead = self.config.look_ahead_frames

    def begin(self) -> str:
        one = self.node("Unsqueeze", "features", self.constant(np.array([0])))
        return self.node("Transpose", one, perm=[0, 2, 1, 3])

    def restored(self, rounded: str, steps: tuple[str, str]) -> str:
        rounded = self._trimmed(rounded)
        name = super().restored(rounded, steps)
        self._rounded[name] = (rounded, steps)
        return name

    def site(self, name: str, tensor: str) -> str:
        tensor = super().site(name, tensor)
        if self.ranges is None:
            tensor = self._trimmed(tensor)
        self._made_at[tensor] = self._ahead
        return tensor

    def reached(self, x: str, unit: SubBlock) -> tuple[str, int]:
        """`x` with what is carried of it in front. A stream's first run has heard nothing yet of what lies ahead: there
        zeros stand in its place, which nothing may come of."""
        rate, stride = unit.rate, unit.stride
        self._before, self._ahead = self._ahead, self._ahead - unit.right * rate
        due = self._ahead // (rate * stride)
        late = self._before // rate - due * stride
        # The last run may bring nothing new to hear. A convolution with a stride must not lack inputs then: it has a
        # stride of them more where none are late, and the output that they give again is trimmed.
        again = stride if stride > 1 and not late else 0
        begin = 0 if stride > 1 else late
        if stride > 1 or late:
            self._trim = (
                self._place(Place(begin, again // stride)),
                self._place(Place(begin, again // stride, rate * stride, due)),
            )
        if not unit.left + late + again:
            return x, 0
        whole = self._with_carried(x, unit.state_channels, unit.left + late + again)
        if stride > 1:  # nothing can be trimmed between strides: what stands for nothing is taken out before
            whole = self._part(whole, x, self._place(Place(late + again, 0)))
        return self._usual(whole, x), 0

    def cut(self, x: str, channels: int, rate: int, step: int = 1) -> str:
        made_at = self._made_at.get(x, self._before) // rate
        due = self._ahead // (rate * step)
        late = made_at - due * step
        if not late:
            return x
        whole, steps = self._whole.get(x, ("", 0))
        if steps < late:
            whole, steps = self._with_carried(x, channels, late), late
        begin = self._place(Place(steps, steps - late))
        end = self._place(Place(steps, steps - late, rate * step, due, step))
        part = self._usual(self._part(whole, x, begin, end), x)
        self._made_at[part] = self._ahead
        return part

    def rows(self) -> str:
        shape = self.node("Shape", "state")
        return self.node("Slice", shape, self.constant(np.array([0])), self.constant(np.array([1])))

    def finish(self, x: str) -> str:
        """[1, channels, rows, steps] to [rows, 1, steps, channels], and the state tied up."""
        self._tie_up()
        return self.node("Transpose", self._trimmed(x), perm=[2, 0, 3, 1])

    def ports(self) -> tuple[list[Any], list[Any]]:
        inputs, outputs = super().ports()
        inputs.append(helper.make_tensor_value_info("places", TensorProto.INT64, [len(self.cuts)]))
        kind = TensorProto.FLOAT if self.ranges is None else TensorProto.UINT8
        size = sum(self._size(channels) for channels in self.pieces)
        inputs.append(helper.make_tensor_value_info("state", kind, ["batch", size]))
        outputs.append(helper.make_tensor_value_info("next_state", kind, ["batch", size]))
        return inputs, outputs

    @property
    def model(self) -> Any:
        """The finished model, its `StateLayout` in its metadata."""
        model = super().model
        layout = {
            "pieces": [
                [channels, [[piece.steps, piece.zero] for piece in pieces]]
                for channels, pieces in self.pieces.items()
            ],
            "places": [
                [place.fresh, place.steady, place.rate, place.ahead, place.times] for place in self.cuts
            ],
        }
        helper.set_model_props(model, {METADATA_KEY: json.dumps(layout)})
        return model

    def _with_carried(self, x: str, channels: int, count: int) -> str:
        """`x`, in 8-bit numbers where it is rounded, and in front of it the `count` steps before."""
        rounded, steps = self._rounded.get(x, (x, None))
        pieces = self.pieces.setdefault(channels, [])
        name = f"state_{channels}_{len(pieces)}"
        axis = 3
        if steps is not None:
            rounded, axis = self.node("Transpose", rounded, perm=BY_TIME), 2
        whole = self.node("Concat", name, rounded, axis=axis)
        bounds = [self.constant(np.array([bound])) for bound in (-count, np.iinfo(np.int64).max, axis)]
        zero = self._zero_of(steps[1]) if steps is not None else 0
        pieces.append(Piece(count, zero, self.node("Slice", whole, *bounds)))
        self._whole[x] = (whole, count)
        return whole

    def _part(self, whole: str, x: str, begin: str, end: str | None = None) -> str:
        """What lies between two places of what `_with_carried` made of `x`."""
        axis = 2 if x in self._rounded else 3
        end = end or self.constant(np.array([np.iinfo(np.int64).max]))
        return self.node("Slice", whole, begin, end, self.constant(np.array([axis])))

    def _usual(self, whole: str, x: str) -> str:
        """The same as the numbers it stands for, by channel."""
        if x not in self._rounded:
            return whole
        steps = self._rounded[x][1]
        rounded = self.node("Transpose", whole, perm=BY_CHANNEL)
        name = self.node("DequantizeLinear", rounded, *steps)
        self._rounded[name] = (rounded, steps)
        return name

    def _trimmed(self, x: str) -> str:
        if self._trim is not None:
            x = self.node("Slice", x, *self._trim, self.constant(np.array([3])))
            self._trim = None
        return x

    def _place(self, place: Place) -> str:
        if place not in self.cuts:
            self.cuts.append(place)
        return f"place_{self.cuts.index(place)}"

    def _size(self, channels: int) -> int:
        return channels * sum(piece.steps for piece in self.pieces[channels])

    def _tie_up(self) -> None:
        """What comes in to its pieces (nodes in front of everything), the following pieces to what goes out."""
        before: list[Any] = []

        def split(x: str, sizes: list[int], names: list[str], axis: int) -> None:
            before.append(
                helper.make_node("Split", [x, self.constant(np.array(sizes))], names, f"split_{x}", axis=axis)
            )

        split("places", [1] * len(self.cuts), [f"place_{index}" for index in range(len(self.cuts))], 0)
        split(
            "state",
            [self._size(channels) for channels in self.pieces],
            [f"state_{c}" for c in self.pieces],
            1,
        )
        followings = []
        by_time = self.ranges is not None
        for channels, pieces in self.pieces.items():
            group = f"state_{channels}"
            steps = [piece.steps for piece in pieces]
            names = [f"{group}_{index}" for index in range(len(pieces))]
            shape = [1, -1, sum(steps), channels] if by_time else [1, -1, channels, sum(steps)]
            rows = f"{group}_rows"
            before.append(helper.make_node("Reshape", [group, self.constant(np.array(shape))], [rows]))
            if not by_time:
                before.append(helper.make_node("Transpose", [rows], [f"{rows}_in"], perm=[0, 2, 1, 3]))
                rows = f"{rows}_in"
            split(rows, steps, names, 2 if by_time else 3)
            joined = self.node("Concat", *(piece.following for piece in pieces), axis=2 if by_time else 3)
            if not by_time:
                joined = self.node("Transpose", joined, perm=[0, 2, 1, 3])
            flat = self.constant(np.array([-1, self._size(channels)]))
            followings.append(self.node("Reshape", joined, flat))
        self.nodes.append(helper.make_node("Concat", followings, ["next_state"], "next_state", axis=1))
        self.nodes[:0] = before

    def _zero_of(self, name: str) -> int:
        constant = next(each for each in self.constants if each.name == name)
        return int(numpy_helper.to_array(constant))
