"""The CPU backend: ONNX Runtime on one thread, FP32 or INT8. Use one process a core; threads scale worse.

Windows run one after another: on one thread a batch is no faster, and so a window's result cannot depend on
its company.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.calibration import known_ranges, needed_ranges
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.features import FrontEnd
from acoustic.onnx_cache import onnx_content
from acoustic.runtime.backend import (
    NOT_FINITE,
    NOT_HEARD,
    Precision,
    failed,
    in_pieces,
    joined,
    kept_outputs,
    streaming_config,
    whole_features,
    window_features,
)
from acoustic.windows import Heard, LogProbs, Samples, Window, default_plan


class CpuBackend:
    """One model on one CPU thread."""

    def __init__(self, checkpoint: Checkpoint, precision: Precision | None = None) -> None:
        if precision == "fp16":
            raise AcousticError("FP16 runs on a GPU; on a CPU choose fp32 or int8.")
        ranges = known_ranges(checkpoint) if precision is None else None
        if precision == "int8":
            ranges = needed_ranges(checkpoint)
        self.precision: Precision = "int8" if ranges else "fp32"
        self.trained_config = checkpoint.config
        self.config = streaming_config(checkpoint.config)
        self.plan = default_plan(self.config)
        self.front_end = FrontEnd(checkpoint.config.features)
        self._session = open_session(onnx_content(checkpoint, ranges))

    def forward(self, windows: Sequence[Window]) -> list[Heard]:
        """Each window's log-probabilities, one window after the other."""
        return [self._hear(window) for window in windows]

    def whole(self, samples: Samples) -> LogProbs:
        """A whole recording at once, normalised as the model was trained."""
        return joined(self.config, self.pieces(samples))

    def pieces(self, samples: Samples) -> Iterator[LogProbs]:
        """The same, handed out as it is heard."""
        features = whole_features(self.front_end, self.trained_config.features, samples)
        return in_pieces(self.config, features, self.run)

    def run(self, features: Tensor) -> NDArray[np.float32]:
        """Normalised features [mels, frames] to log-probabilities [outputs, classes]."""
        (log_probs,) = self._session.run(None, {"features": features[None].numpy()})
        return cast(NDArray[np.float32], log_probs[0])

    @torch.no_grad()
    def _hear(self, window: Window) -> Heard:
        features, memory = window_features(self.front_end, self.config.features, window)
        # INT8 would round a NaN to some number and go on: the features are what tells.
        if not torch.isfinite(features).all():
            return failed(self.config, window, NOT_FINITE)
        log_probs = self.run(features)[kept_outputs(self.config, window)]
        if not np.isfinite(log_probs).all():
            return failed(self.config, window, NOT_HEARD)
        return Heard(window.span, log_probs, memory)


def open_session(content: bytes) -> onnxruntime.InferenceSession:
    """One thread. Denormal numbers stay: ONNX Runtime would flush them in the caller's whole thread for good,
    and digital silence runs as fast without (measured: a folded network has a bias in every layer)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
