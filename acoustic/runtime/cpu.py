"""The CPU backend: ONNX Runtime on one thread, FP32 or INT8. Use one process a core; threads scale worse.

Windows with left context run one after another: a batch of them is no faster on one thread. Windows with carried
state are short: those of one length run together, as rows that no operation mixes.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.export.cache import onnx_content
from acoustic.export.streaming import METADATA_KEY, StateLayout
from acoustic.features.framing import Samples
from acoustic.features.front_end import FrontEnd
from acoustic.quantization.ranges import find_ranges, require_ranges
from acoustic.runtime.backend import (
    AUDIO_NOT_FINITE,
    NETWORK_NOT_FINITE,
    STATEFUL_BLOCK_S,
    Precision,
    concatenate,
    failed,
    iter_stream_log_probs,
    kept_outputs,
    new_features,
    run_in_blocks,
    stream_state_of,
    streaming_config,
    iter_recording_features,
    window_features,
)
from acoustic.stream_state import NormalizationState, StreamState
from acoustic.windows import LogProbs, Window, WindowOutput, default_plan, supports_stream_state, with_hop

MAX_ROWS = 8
"""More rows share the reading of the weights no better."""


class CpuBackend:
    """One model on one CPU thread."""

    def __init__(self, checkpoint: Checkpoint, precision: Precision | None = None) -> None:
        if precision == "fp16":
            raise AcousticError("FP16 runs on a GPU; on a CPU choose fp32 or int8.")
        ranges = find_ranges(checkpoint) if precision is None else None
        if precision == "int8":
            ranges = require_ranges(checkpoint)
        self.precision: Precision = "int8" if ranges else "fp32"
        self.trained_config = checkpoint.config
        self.config = streaming_config(checkpoint.config)
        self.plan = default_plan(self.config, stateful=True)
        self.front_end = FrontEnd(checkpoint.config.features)
        self.features_s = 0.0
        """Seconds that windows have spent in the front end since the backend was opened."""
        stateful = supports_stream_state(self.config)
        self._session = open_session(onnx_content(checkpoint, ranges, stateful=stateful))
        self._empty: StreamState | None = None
        if stateful:
            self._layout = StateLayout.read(self._session.get_modelmeta().custom_metadata_map[METADATA_KEY])
            self._empty = StreamState(self._layout.empty(rounded=ranges is not None))

    def forward(self, windows: Sequence[Window]) -> list[WindowOutput]:
        """Each window's log-probabilities, in the order given."""
        heard: dict[int, WindowOutput] = {}
        rows: dict[Shape, list[Row]] = {}
        for index, window in enumerate(windows):
            if not window.span.stateful:
                heard[index] = self._hear(window)
                continue
            row = self._row(index, window)
            if not torch.isfinite(row.features).all():
                heard[index] = failed(self.config, row.window, AUDIO_NOT_FINITE)
                continue
            rows.setdefault(row.shape, []).append(row)
        for shape, alike in rows.items():
            for first in range(0, len(alike), MAX_ROWS):
                heard.update(self._hear_rows(alike[first : first + MAX_ROWS], shape))
        return [heard[index] for index in range(len(windows))]

    def whole(self, samples: Samples) -> LogProbs:
        """A whole recording at once, normalized as the model was trained."""
        return concatenate(self.config, self.pieces([samples]))

    def pieces(self, sound: Iterable[Samples]) -> Iterator[LogProbs]:
        """The same of sound block by block, handed out as it is heard."""
        if self._empty is not None:  # as a stream with wide hops: nothing is heard twice
            return iter_stream_log_probs(self, sound, with_hop(self.config, self.plan, STATEFUL_BLOCK_S))
        features = iter_recording_features(self.front_end, self.trained_config.features, sound)
        return run_in_blocks(self.config, features, self.run)

    def run(self, features: Tensor) -> NDArray[np.float32]:
        """Normalized features [mels, frames] to log-probabilities [outputs, classes]."""
        if self._empty is not None:
            shape = Shape(features.shape[-1], features.shape[-1], first=True, last=True)
            log_probs, _ = self._step(features[None].numpy(), self._empty.array()[None], shape)
            return cast(NDArray[np.float32], log_probs[0])
        (log_probs,) = self._session.run(None, {"features": features[None].numpy()})
        return cast(NDArray[np.float32], log_probs[0])

    @torch.no_grad()
    def _hear(self, window: Window) -> WindowOutput:
        features, memory = self._features(window)
        # INT8 would round a NaN to some number and go on: the features are what tells.
        if not torch.isfinite(features).all():
            return failed(self.config, window, AUDIO_NOT_FINITE)
        log_probs = self.run(features)[kept_outputs(self.config, window)]
        if not np.isfinite(log_probs).all():
            return failed(self.config, window, NETWORK_NOT_FINITE)
        return WindowOutput(window.span, log_probs, memory)

    def _features(self, window: Window) -> tuple[Tensor, NormalizationState | None]:
        begin_s = time.perf_counter()
        if window.span.stateful:
            found = new_features(self.front_end, self.config, window)
        else:
            found = window_features(self.front_end, self.config.features, window)
        self.features_s += time.perf_counter() - begin_s
        return found

    @torch.no_grad()
    def _row(self, index: int, window: Window) -> "Row":
        if self._empty is None:
            raise AcousticError(f"{self.config.name} carries no state: cut its streams by its own plan.")
        state, span = stream_state_of(window, self._empty), window.span
        features, memory = self._features(window)
        completed = span.frames if span.last else span.kept * self.config.frames_per_output
        shape = Shape(features.shape[-1], completed, first=not span.first_frame, last=span.last)
        # A window that fails hands on the state it was given, also where that is the empty one.
        return Row(index, replace(window, memory=state), features, state, memory, shape)

    def _hear_rows(self, rows: "Sequence[Row]", shape: "Shape") -> dict[int, WindowOutput]:
        """Windows of one length, each with its state, as one run."""
        features = np.stack([row.features.numpy() for row in rows])
        states = np.stack([row.state.array() for row in rows])
        log_probs, following = self._step(features, states, shape)
        heard = {}
        for place, row in enumerate(rows):
            kept = log_probs[place, : row.window.span.kept].copy()
            if np.isfinite(kept).all() and np.isfinite(following[place]).all():
                state = row.state if shape.last else StreamState(following[place].copy(), row.memory)
                heard[row.index] = WindowOutput(row.window.span, kept, state)
            else:
                heard[row.index] = failed(self.config, row.window, NETWORK_NOT_FINITE)
        return heard

    def _step(
        self, features: NDArray[np.float32], states: NDArray[Any], shape: "Shape"
    ) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """[rows, mels, frames] and [rows, values] to log-probabilities and the states that follow."""
        places = self._layout.places(shape.completed, first=shape.first, last=shape.last)
        given = {"features": features, "places": places, "state": states}
        log_probs, following = self._session.run(None, given)
        return log_probs, following


@dataclass(frozen=True)
class Shape:
    """What runs have in common that may run together: new frames, frames completed, the first of its stream, the
    last."""

    frames: int
    completed: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Row:
    """A window with carried state on its way through the network."""

    index: int
    window: Window
    features: Tensor
    state: StreamState
    memory: NormalizationState | None
    """What causal normalization knows afterwards."""
    shape: Shape


def open_session(content: bytes) -> onnxruntime.InferenceSession:
    """One thread. Denormal numbers stay: ONNX Runtime would flush them in the caller's whole thread for good,
    and digital silence runs as fast without (measured: a folded network has a bias in every layer)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
