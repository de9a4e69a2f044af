"""Imports checkpoints (`.pt`) of NVIDIA's DeepLearningExamples: Jasper and QuartzNet, averaged weights preferred.

The file does not contain strides and dilations. As in every network published in this format, the first block has
stride 2, and the block before the last, if it has no bypass, has dilation 2.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from acoustic.architectures import ALPHABET, FIXED
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig, ModelConfig
from acoustic.errors import AcousticError
from acoustic.importers.jasper_layout import BlockShape, convert, group_tensors, shape_of
from acoustic.importers.untrusted import load_tensors

LOG_FLOOR = 1e-20


def recognizes(path: Path) -> bool:
    """Whether the path may be such a file."""
    return path.is_file() and path.suffix in (".pt", ".pth", ".ckpt")


def read(path: Path) -> Checkpoint:
    """Read the file."""
    saved = load_tensors(path, str(path))
    if not isinstance(saved, Mapping) or not isinstance(saved.get("state_dict"), Mapping):
        raise AcousticError(f"{path} has no `state_dict`: it is not a DeepLearningExamples checkpoint.")
    averaged = saved.get("ema_state_dict")
    blocks, decoder = group_tensors(averaged if averaged else saved["state_dict"])
    shapes = [shape_of(block) for block in blocks]
    classes = decoder["weight"].shape[0]
    if classes != len(ALPHABET) + 1:
        raise AcousticError(f"{path} has {classes} outputs, expected {len(ALPHABET) + 1} (English).")
    features = replace(FIXED, normalize="utterance", log_floor=LOG_FLOOR)
    first = blocks[0].main[min(blocks[0].main)]["weight"]
    mels = first.shape[0] if shapes[0].separable else first.shape[1]
    if mels != features.mels:
        features = replace(features, mels=mels, mean=None, deviation=None)
    config = ModelConfig(path.stem, features, _blocks(shapes))
    card: dict[str, Any] = {
        "title": path.stem,
        "imported_from": "NVIDIA DeepLearningExamples checkpoint",
        "weights": "averaged over training steps" if averaged else "of the last step",
    }
    if isinstance(saved.get("epoch"), int):
        card["epoch"] = saved["epoch"]
    checkpoint = Checkpoint(config, convert(blocks, decoder), card)
    checkpoint.network()  # raises if shapes do not fit
    return checkpoint


def _blocks(shapes: list[BlockShape]) -> tuple[BlockConfig, ...]:
    dense = "dense_residual" if any(shape.projections > 1 for shape in shapes) else "residual"
    blocks = []
    for index, shape in enumerate(shapes):
        dilated = index == len(shapes) - 2 and index > 0 and shape.projections == 0 and shape.kernel > 1
        blocks.append(
            BlockConfig(
                kernel=shape.kernel,
                channels=shape.channels,
                repeat=shape.repeat,
                stride=2 if index == 0 else 1,
                dilation=2 if dilated else 1,
                separable=shape.separable,
                residual=cast(Any, dense if shape.projections else "none"),
                groups=shape.groups,
            )
        )
    return tuple(blocks)
