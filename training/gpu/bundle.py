"""What training needs beside packed audio, in one file: the recipe, the teacher in FP16 up to the last block that is
used, the measures of its blocks, impulse responses. It holds tensors and JSON only: reading it runs no code.
"""

import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acoustic.checkpoint import Checkpoint
from acoustic.config import FeatureConfig, ModelConfig
from acoustic.files import replacing_file
from acoustic.network import build
from acoustic.network.folding import fold
from training.distillation.blockwise import BlockwiseTeacher
from training.errors import TrainingError
from training.recipe import Recipe, parse_recipe

BUNDLE = "models.pt"
FORMAT = 3


@dataclass(frozen=True)
class PackedTeacher:
    """A folded teacher, and what `BlockwiseTeacher.measure` found on the training clips."""

    checkpoint: Checkpoint
    scales: list[float]
    channel_weights: list[Tensor]

    def open(self, blocks: tuple[int, ...], device: torch.device, student: FeatureConfig) -> BlockwiseTeacher:
        """The teacher on a device."""
        if len(blocks) != len(self.scales):
            raise TrainingError(
                f"blockwise.teacher_blocks is {list(blocks)}: the packed teacher was measured for {len(self.scales)} "
                "blocks. Pack again with this recipe."
            )
        teacher = BlockwiseTeacher(self.checkpoint, blocks, device, student)
        teacher.scales = self.scales
        teacher.channel_weights = [weights.to(device) for weights in self.channel_weights]
        return teacher


@dataclass(frozen=True)
class Bundle:
    """The recipe as it was packed, its teacher (blockwise distillation only), and impulse responses."""

    recipe: Recipe
    teacher: PackedTeacher | None
    responses: Tensor | None
    noise_peak: float
    """The loudest sample of the packed noise, in standard deviations."""


def write_bundle(
    path: Path,
    recipe: Recipe,
    teacher: Checkpoint | None,
    measured: BlockwiseTeacher | None,
    responses: Tensor | None,
    noise_peak: float,
) -> int:
    """Write the file atomically; returns its size in bytes."""
    values: dict[str, Any] = {
        "format": FORMAT,
        "recipe": json.dumps(asdict(recipe)),
        "responses": None if responses is None else responses.half(),
        "noise_peak": noise_peak,
    }
    if teacher is not None and measured is not None:
        folded = fold(teacher)
        weights = {
            name: tensor.half() if tensor.is_floating_point() else tensor
            for name, tensor in folded.state.items()
            if _is_used(name, measured.blocks[-1])
        }
        for name, tensor in weights.items():
            if not torch.isfinite(tensor).all():
                raise TrainingError(
                    f"The weight {name} of {teacher.config.name} is not finite in FP16: it cannot be packed."
                )
        values |= {
            "teacher_config": json.dumps(folded.config.to_dict()),
            "teacher": weights,
            "scales": measured.scales,
            "channel_weights": [weights.cpu() for weights in measured.channel_weights],
        }
    with replacing_file(path) as partial:
        torch.save(values, partial)
    return path.stat().st_size


def read_bundle(folder: Path) -> Bundle:
    """The bundle in a packed folder. The teacher's blocks that were left out are zeros."""
    path = folder / BUNDLE
    try:
        values: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainingError(f"There is no {path}: `silica pack` writes it beside the parts.") from None
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(
            f"{path} is not complete, or was not written by `silica pack`: {error}."
        ) from None
    if values.get("format") != FORMAT:
        raise TrainingError(f"{path} has format {values.get('format')}, expected {FORMAT}: pack again.")
    teacher = None
    if "teacher" in values:
        config = ModelConfig.from_dict(json.loads(values["teacher_config"]))
        with torch.device("meta"):
            expected = build(config).state_dict()
        weights = values["teacher"]
        state = {
            name: weights[name].to(tensor.dtype)
            if name in weights
            else torch.zeros(tensor.shape, dtype=tensor.dtype)
            for name, tensor in expected.items()
        }
        teacher = PackedTeacher(Checkpoint(config, state), values["scales"], values["channel_weights"])
    responses = values["responses"]
    return Bundle(
        parse_recipe(json.loads(values["recipe"]), str(path)),
        teacher,
        None if responses is None else responses.float(),
        values["noise_peak"],
    )


def _is_used(name: str, last: int) -> bool:
    """Whether a weight is needed for the outputs of the blocks up to `last`."""
    parts = name.split(".")
    return parts[0] == "blocks" and int(parts[1]) <= last
