"""Weights on disk: one safetensors file of a known form, whole or not at all, with a card of words about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from acoustic.files import replacing_file
from lm.errors import LanguageError

if TYPE_CHECKING:
    from torch import Tensor

SCALE = ".scale"
"""What a matrix in eight bits has beside it: a factor a row."""


@dataclass(frozen=True)
class FileFormat:
    """What a file holds: the name in its card, what people call it, and the command that makes one."""

    name: str
    kind: str
    made_by: str


def write_weights(
    path: Path, form: FileFormat, weights: "Mapping[str, Tensor]", card: Mapping[str, str]
) -> None:
    """Write the file; whoever may read its neighbours may read it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    try:
        with replacing_file(path) as partial:
            save_file(contiguous, partial, {"form": form.name, **card})
    except SafetensorError as error:  # a full disk, in its own kind of error
        raise LanguageError(f"{path} could not be written: {error}") from error


def quantize_to_8_bits(weights: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Matrices as whole numbers, 127 steps either way of what each row's largest weight is; vectors in 16 bits."""
    import torch

    packed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dim() != 2:
            packed[name] = tensor.half()
            continue
        scale = (tensor.float().abs().amax(dim=1) / 127).clamp(min=1e-4).half()
        packed[name + SCALE] = scale
        packed[name] = (tensor.float() / scale.float().unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
    return packed


def read_weights(path: Path, form: FileFormat) -> tuple[dict[str, NDArray[np.float32]], dict[str, str]]:
    """The weights in 32 bits, and the card."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise LanguageError(f"there is no {form.kind} {path}; `{form.made_by}` makes one")
    try:
        with safe_open(path, framework="numpy") as file:
            card: dict[str, str] = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise LanguageError(f"{path} is no safetensors file: {error}") from None
    if card.get("form") != form.name:
        raise LanguageError(
            f"{path} is no {form.kind} of ours: expected form {form.name!r}, found {card.get('form')!r}"
        )
    scales = {name: stored.pop(name + SCALE) for name in list(stored) if name + SCALE in stored}
    weights = {name: tensor.astype(np.float32) for name, tensor in stored.items()}
    for name, scale in scales.items():
        weights[name] *= scale.astype(np.float32)[:, None]
    return weights, card
