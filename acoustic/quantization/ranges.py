"""Stores and loads the value ranges of INT8 activations: on a model's card, or in the user's cache.

`acoustic.quantization.calibration` measures them.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.export.cache import fingerprint
from acoustic.export.graph import Range, Ranges
from acoustic.files import cache_folder, write_file

CARD_KEY = "int8_ranges"


def find_ranges(checkpoint: Checkpoint) -> Ranges | None:
    """The model's ranges from the user's cache or else from its card; None if it is not calibrated."""
    stored: Any
    try:
        stored = json.loads(_cache_file(checkpoint).read_text())
    except (OSError, ValueError):
        stored = checkpoint.card.get(CARD_KEY)
    return None if stored is None else _checked(stored)


def require_ranges(checkpoint: Checkpoint) -> Ranges:
    """The model's ranges; raises if it is not calibrated."""
    ranges = find_ranges(checkpoint)
    if ranges is None:
        raise AcousticError(
            f"The model {checkpoint.config.name} has no INT8 ranges. Measure them once on a few minutes of speech "
            "(`silica calibrate MODEL FILE...`) or use fp32."
        )
    return ranges


def with_ranges(checkpoint: Checkpoint, ranges: Ranges) -> Checkpoint:
    """The checkpoint with these ranges on its card."""
    return replace(checkpoint, card={**checkpoint.card, CARD_KEY: {k: list(v) for k, v in ranges.items()}})


def store_ranges(checkpoint: Checkpoint, ranges: Ranges) -> None:
    """Store ranges in the user's cache. The model file does not change: it may be read-only or shared."""
    write_file(_cache_file(checkpoint), json.dumps(ranges))


def _cache_file(checkpoint: Checkpoint) -> Path:
    return cache_folder() / f"{fingerprint(checkpoint)}.ranges.json"


def _checked(stored: Any) -> Ranges:
    if not isinstance(stored, dict):
        raise AcousticError("The model's INT8 ranges are damaged (expected a mapping). Calibrate again.")
    ranges: dict[str, Range] = {}
    for name, pair in stored.items():
        finite = isinstance(pair, list | tuple) and len(pair) == 2
        if not finite or not all(isinstance(end, int | float) and np.isfinite(end) for end in pair):
            raise AcousticError(f"The INT8 range of {name} is damaged: {pair!r}. Calibrate again.")
        ranges[str(name)] = (float(pair[0]), float(pair[1]))
    return ranges
