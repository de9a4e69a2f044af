"""What a sitting needs beside sound, in one file: the recipe, the teacher in FP16 up to the last block that is learnt,
what its blocks' outputs measure, impulse responses. Tensors and JSON alone: nothing in it is run when it is read.
"""

import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.network import build
from acoustic.network.folding import fold
from training.distillation.blockwise import BlockwiseTeacher
from training.errors import TrainingError
from training.recipe import Recipe, parse_recipe

MODELS = "models.pt"
FORMAT = 2


@dataclass(frozen=True)
class Packed:
    """The recipe with all it was packed with, the folded teacher, and what its blocks measure
    (training.distillation.blockwise).
    """

    recipe: Recipe
    teacher: Checkpoint
    scales: list[float]
    shares: list[Tensor]
    responses: Tensor | None
    noise_top: float
    """The loudest sample of the noise, whose deviation is one."""


def write_models(
    path: Path,
    recipe: Recipe,
    teacher: Checkpoint,
    measured: BlockwiseTeacher,
    responses: Tensor | None,
    noise_top: float,
) -> int:
    """The file appears whole or not at all; its size comes back."""
    folded = fold(teacher)
    kept = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in folded.state.items()
        if _heard(name, recipe.blockwise.teacher_blocks[-1])
    }
    for name, tensor in kept.items():
        if not torch.isfinite(tensor).all():
            raise TrainingError(
                f"The weight {name} of {teacher.config.name} is not finite in FP16: it cannot be packed."
            )
    values = {
        "format": FORMAT,
        "recipe": json.dumps(asdict(recipe)),
        "teacher_config": json.dumps(folded.config.to_dict()),
        "teacher": kept,
        "scales": measured.scales,
        "shares": [share.cpu() for share in measured.shares],
        "responses": None if responses is None else responses.half(),
        "noise_top": noise_top,
    }
    partial = path.with_name(f".{path.name}.part")
    torch.save(values, partial)
    partial.replace(path)
    return path.stat().st_size


def read_models(path: Path) -> Packed:
    """What pack_sitting.py wrote; the teacher's blocks that were left out come back as noughts."""
    try:
        values: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainingError(
            f"There is no {path}: scripts/pack_sitting.py writes it beside the parts."
        ) from None
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"{path} is not whole, or is no file of pack_sitting.py: {error}.") from None
    if values.get("format") != FORMAT:
        raise TrainingError(f"{path} is of format {values.get('format')}: expected {FORMAT}. Pack again.")
    config = ModelConfig.from_dict(json.loads(values["teacher_config"]))
    with torch.device("meta"):
        wanted = build(config).state_dict()
    kept = values["teacher"]
    state = {
        name: kept[name].to(tensor.dtype) if name in kept else torch.zeros(tensor.shape, dtype=tensor.dtype)
        for name, tensor in wanted.items()
    }
    responses = values["responses"]
    return Packed(
        parse_recipe(json.loads(values["recipe"]), str(path)),
        Checkpoint(config, state),
        values["scales"],
        values["shares"],
        None if responses is None else responses.float(),
        values["noise_top"],
    )


def _heard(name: str, last: int) -> bool:
    """Whether a weight has a part in what the teacher's blocks up to `last` make."""
    parts = name.split(".")
    return parts[0] == "blocks" and int(parts[1]) <= last
