"""The ranges that INT8 activations need, measured once on speech; a model's card or the cache keeps them.

What is done with them is in `acoustic.export`.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.export import build_graph, onnx_bytes
from acoustic.features import FrontEnd
from acoustic.framing import Samples
from acoustic.graph import Range, Ranges
from acoustic.onnx_cache import cache_folder, fingerprint

Values = NDArray[np.float32]

CARD_KEY = "int8_ranges"
ENOUGH_S = 60.0
CUT_OFF = (0.0, 1e-5, 3e-5, 1e-4, 3e-4)
"""Shares of a tensor's numbers that may lie beyond its range at either end. A few reach so far that their steps are too
coarse for all others: QuartzNet 15x5 loses least with 1e-5 (and words with 1e-4), the model in the box with 1e-4. What
least squared error would cut off loses more than either."""
SAMPLE = 400_000
"""So many numbers of a tensor tell where those shares end."""


def known_ranges(checkpoint: Checkpoint) -> Ranges | None:
    """The ranges of a calibrated model, else None: what the user measured here, else what its card says."""
    stored: Any
    try:
        stored = json.loads(_cached(checkpoint).read_text())
    except (OSError, ValueError):
        stored = checkpoint.card.get(CARD_KEY)
    return None if stored is None else _checked(stored)


def needed_ranges(checkpoint: Checkpoint) -> Ranges:
    """The ranges of a calibrated model; one that is not is refused with what to do."""
    ranges = known_ranges(checkpoint)
    if ranges is None:
        raise AcousticError(
            f"The model {checkpoint.config.name} has no INT8 ranges yet. Measure them once on a few minutes of "
            "speech (`silica calibrate MODEL FILE...`) or use fp32."
        )
    return ranges


def with_ranges(checkpoint: Checkpoint, ranges: Ranges) -> Checkpoint:
    """The checkpoint with its ranges on its card."""
    return replace(checkpoint, card={**checkpoint.card, CARD_KEY: {k: list(v) for k, v in ranges.items()}})


def calibrate(
    checkpoint: Checkpoint,
    recordings: Iterable[Samples],
    *,
    keep: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Range]:
    """Measure the ranges on recordings (16 kHz, mono; a few minutes of speech like that to be heard).

    keep: also remember them in the user's cache, for models whose file cannot be written. `tell` is told how far it has
    come.
    """
    from acoustic.runtime.backend import whole_features

    front_end = FrontEnd(checkpoint.config.features)
    heard = [
        whole_features(front_end, checkpoint.config.features, sound) for sound in recordings if len(sound)
    ]
    seconds = sum(features.shape[-1] for features in heard) / checkpoint.config.frames_per_second
    if seconds < ENOUGH_S:
        raise AcousticError(
            f"Calibrating on {seconds:.0f} s of speech would guess at the ranges: "
            f"give at least {ENOUGH_S:.0f} s."
        )
    ranges = _measure(checkpoint, heard, tell)
    if keep:
        path = _cached(checkpoint)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        partial.write_text(json.dumps(ranges))
        partial.replace(path)
    return ranges


def _measure(
    checkpoint: Checkpoint, heard: list[torch.Tensor], tell: Callable[[str], None] = lambda text: None
) -> dict[str, Range]:
    """Of the ranges that cut off one of CUT_OFF, those with which INT8 says most nearly what FP32 says."""
    from acoustic.runtime.cpu import open_session

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
    tell(f"ranges: how far {len(tensors)} tensors reach in {len(heard)} recordings")
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
        tell(f"ranges: what rounding costs, {index + 1} of {len(CUT_OFF)}")
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


def _cached(checkpoint: Checkpoint) -> Any:
    return cache_folder() / f"{fingerprint(checkpoint)}.ranges.json"


def _checked(stored: Any) -> Ranges:
    if not isinstance(stored, dict):
        raise AcousticError("The model's INT8 ranges are damaged (expected a table). Calibrate again.")
    ranges: dict[str, Range] = {}
    for name, pair in stored.items():
        finite = isinstance(pair, list | tuple) and len(pair) == 2
        if not finite or not all(isinstance(end, int | float) and np.isfinite(end) for end in pair):
            raise AcousticError(f"The INT8 range of {name} is damaged: {pair!r}. Calibrate again.")
        ranges[str(name)] = (float(pair[0]), float(pair[1]))
    return ranges
