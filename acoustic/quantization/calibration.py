"""Calibration: measures on speech the value ranges that INT8 activations need.

Where ranges are stored: `acoustic.quantization.ranges`. How a graph uses them: `acoustic.export.onnx`.
"""

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.export.graph import Range
from acoustic.export.onnx import build_graph, onnx_bytes
from acoustic.features.framing import Samples
from acoustic.features.front_end import FrontEnd
from acoustic.quantization.ranges import keep_ranges
from acoustic.runtime.backend import recording_features
from acoustic.runtime.cpu import open_session

Values = NDArray[np.float32]

MIN_CALIBRATION_S = 60.0
CUT_OFF = (0.0, 1e-5, 3e-5, 1e-4, 3e-4)
"""Shares of a tensor's numbers that may lie beyond its range at either end. A few reach so far that their steps are too
coarse for all others: QuartzNet 15x5 loses least with 1e-5 (and words with 1e-4), the model in the box with 1e-4. What
least squared error would cut off loses more than either."""
SAMPLE = 400_000
"""So many numbers of a tensor tell where those shares end."""


def calibrate(
    checkpoint: Checkpoint,
    recordings: Iterable[Samples],
    *,
    keep: bool = True,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Range]:
    """Measure the ranges on recordings (16 kHz, mono; a few minutes of speech like that to be heard).

    keep: also remember them in the user's cache, for models whose file cannot be written. `report` is told how far it has
    come.
    """
    front_end = FrontEnd(checkpoint.config.features)
    heard = [
        recording_features(front_end, checkpoint.config.features, sound) for sound in recordings if len(sound)
    ]
    seconds = sum(features.shape[-1] for features in heard) / checkpoint.config.frames_per_second
    if seconds < MIN_CALIBRATION_S:
        raise AcousticError(
            f"Calibrating on {seconds:.0f} s of speech would guess at the ranges: "
            f"give at least {MIN_CALIBRATION_S:.0f} s."
        )
    ranges = _measure(checkpoint, heard, report)
    if keep:
        keep_ranges(checkpoint, ranges)
    return ranges


def _measure(
    checkpoint: Checkpoint, heard: list[torch.Tensor], report: Callable[[str], None] = lambda text: None
) -> dict[str, Range]:
    """Of the ranges that cut off one of CUT_OFF, those with which INT8 says most nearly what FP32 says."""
    graph = build_graph(checkpoint)
    model = graph.model
    tensors = list(dict.fromkeys(graph.sites.values()))
    for tensor in tensors:
        model.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None))
    session = open_session(model.SerializeToString())
    extremes: dict[str, Range] = dict.fromkeys(tensors, (0.0, 0.0))
    samples: dict[str, list[Values]] = {tensor: [] for tensor in tensors}
    exact: list[Values] = []
    most, generator = -(-SAMPLE // len(heard)), np.random.default_rng(0)
    report(f"ranges: how far {len(tensors)} tensors reach in {len(heard)} recordings")
    for features in heard:
        said, *made = session.run(None, {"features": features[None].numpy()})
        exact.append(said)
        for tensor, values in zip(tensors, made, strict=True):
            low, high = extremes[tensor]
            extremes[tensor] = (min(low, float(values.min())), max(high, float(values.max())))
            samples[tensor].append(generator.choice(values.ravel(), min(values.size, most), replace=False))
    sampled = {tensor: np.concatenate(parts) for tensor, parts in samples.items()}
    tried: list[tuple[float, dict[str, Range]]] = []
    for index, share in enumerate(CUT_OFF):
        report(f"ranges: what rounding costs, {index + 1} of {len(CUT_OFF)}")
        within = {tensor: _within(sampled[tensor], extremes[tensor], share) for tensor in tensors}
        ranges = {site: within[tensor] for site, tensor in graph.sites.items()}
        rounded = open_session(onnx_bytes(checkpoint, ranges))
        losses = [
            _loss(said, rounded.run(["log_probs"], {"features": features[None].numpy()})[0])
            for features, said in zip(heard, exact, strict=True)
        ]
        tried.append((float(np.concatenate(losses).mean()), ranges))
    return min(tried, key=lambda one: one[0])[1]


def _within(values: Values, extremes: Range, share: float) -> Range:
    if not share:
        return extremes
    low, high = np.quantile(values, [share, 1.0 - share])
    return min(0.0, float(low)), max(0.0, float(high))


def _loss(exact: Values, rounded: Values) -> Values:
    """How far the rounded probabilities are from the exact ones, output by output (Kullback and Leibler, nats)."""
    return cast(Values, (np.exp(exact) * (exact - rounded)).sum(-1).ravel())
