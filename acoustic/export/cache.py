"""Caches ONNX files in `acoustic.files.cache_folder`, named by a hash of their inputs; keeps a limited number."""

import hashlib
import json
from pathlib import Path

import numpy as np

from acoustic.checkpoint import MAX_WEIGHT, Checkpoint
from acoustic.export.graph import OPSET, Ranges
from acoustic.export.onnx import export_onnx, onnx_bytes
from acoustic.files import cache_folder
from acoustic.network.folding import fold

BUILD_VERSION = 3
"""Increase it when a checkpoint's graph changes. It also names the stored INT8 ranges (`acoustic.quantization`)."""
STREAMING_BUILD_VERSION = "stateful 5"
"""The same for streaming graphs."""
MAX_FILES = 12


def fingerprint(checkpoint: Checkpoint, ranges: Ranges | None = None, *, stateful: bool = False) -> str:
    """A hash of the folded weights, the configuration, the ranges and the kind of graph."""
    checkpoint = fold(checkpoint)
    digest = hashlib.sha256()
    # Of the name and the front end the graph depends only on the number of mel bands.
    shape = checkpoint.config.to_dict() | {"name": "", "features": checkpoint.config.features.mels}
    rules = [BUILD_VERSION, OPSET, MAX_WEIGHT, shape] + [STREAMING_BUILD_VERSION] * stateful
    digest.update(json.dumps([rules, sorted(ranges.items()) if ranges else None]).encode())
    for name in sorted(checkpoint.state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(checkpoint.state[name].detach().cpu().numpy()).data)
    return digest.hexdigest()[:32]


def onnx_content(checkpoint: Checkpoint, ranges: Ranges | None = None, *, stateful: bool = False) -> bytes:
    """The model as an ONNX file, from the cache or newly built. A read-only cache is not an error."""
    path = cache_folder() / f"{fingerprint(checkpoint, ranges, stateful=stateful)}.onnx"
    try:
        content = path.read_bytes()
        path.touch()
        return content
    except OSError:
        pass
    try:
        export_onnx(checkpoint, path, ranges, stateful=stateful)
        _remove_oldest(path.parent)
        return path.read_bytes()
    except OSError:
        return onnx_bytes(checkpoint, ranges, stateful=stateful)


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.onnx"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MAX_FILES:]:
        file.unlink(missing_ok=True)
