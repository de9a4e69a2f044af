"""What a checkpoint file says of itself: its ModelConfig and its card, read without its weights and without PyTorch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from acoustic.config import ModelConfig
from acoustic.errors import AcousticError

FORMAT = "silica-acoustic-1"
SUFFIX = ".safetensors"
FILE_NAME = "model" + SUFFIX


def file_in(folder_or_file: Path) -> Path:
    """The file that a folder or file name means."""
    return folder_or_file if folder_or_file.suffix == SUFFIX else folder_or_file / FILE_NAME


def describe(path: str | Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Configuration and card of a file, or of the `model.safetensors` of a folder."""
    file = file_in(Path(path))
    try:
        with safe_open(file, framework="np") as opened:
            return described(file, opened.metadata())
    except (SafetensorError, OSError) as error:
        raise AcousticError(f"{file} cannot be read as a model: {error}.") from error


def described(file: Path, metadata: Mapping[str, str] | None) -> tuple[ModelConfig, dict[str, Any]]:
    """The same, from the metadata of a file that is open."""
    if not metadata or metadata.get("format") != FORMAT:
        found = (metadata or {}).get("format", "none")
        raise AcousticError(
            f"{file} is no Silica checkpoint (its format is {found!r}, expected {FORMAT!r}). "
            "Bring foreign weights in with `silica models import`."
        )
    try:
        config, card = json.loads(metadata["config"]), json.loads(metadata["card"])
    except (KeyError, json.JSONDecodeError) as error:
        raise AcousticError(f"{file}: its description is damaged ({error}).") from error
    if not isinstance(config, dict) or not isinstance(card, dict):
        raise AcousticError(f"{file}: its description is damaged (expected two tables).")
    return ModelConfig.from_dict(config), card
