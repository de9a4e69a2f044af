"""Reads a checkpoint's metadata (ModelConfig and card) without its weights and without PyTorch."""

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


def checkpoint_path(folder_or_file: Path) -> Path:
    """The checkpoint file: the path itself, or `model.safetensors` in a folder."""
    return folder_or_file if folder_or_file.suffix == SUFFIX else folder_or_file / FILE_NAME


def describe(path: str | Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Configuration and card of a file, or of the `model.safetensors` of a folder."""
    file = checkpoint_path(Path(path))
    try:
        with safe_open(file, framework="np") as opened:
            return parse_metadata(file, opened.metadata())
    except (SafetensorError, OSError) as error:
        raise AcousticError(f"{file} cannot be read as a model: {error}.") from error


def parse_metadata(file: Path, metadata: Mapping[str, str] | None) -> tuple[ModelConfig, dict[str, Any]]:
    """Configuration and card from a safetensors file's metadata."""
    if not metadata or metadata.get("format") != FORMAT:
        found = (metadata or {}).get("format", "none")
        raise AcousticError(
            f"{file} is not a Silica checkpoint (format {found!r}, expected {FORMAT!r}). "
            "Import weights of other projects with `silica models import`."
        )
    try:
        config, card = json.loads(metadata["config"]), json.loads(metadata["card"])
    except (KeyError, json.JSONDecodeError) as error:
        raise AcousticError(f"{file}: the metadata are damaged ({error}).") from error
    if not isinstance(config, dict) or not isinstance(card, dict):
        raise AcousticError(f"{file}: the metadata are damaged (expected two JSON objects).")
    return ModelConfig.from_dict(config), card
