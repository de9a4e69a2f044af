"""Built ONNX files, kept between runs: named by the content they were made from, a bounded number of them.

They live in `acoustic.files.cache_folder`. Losing one costs a second.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from acoustic.checkpoint import MAX_WEIGHT, Checkpoint
from acoustic.export.graph import OPSET, Ranges
from acoustic.export.onnx import export_onnx, onnx_bytes
from acoustic.files import cache_folder
from acoustic.network.folding import fold

BUILDER = 3  # raise it when the same checkpoint is built differently
STREAMING_BUILDER = "carried 4"  # and this one for the graphs with carried state
KEPT_FILES = 12


def fingerprint(checkpoint: Checkpoint, ranges: Ranges | None = None, *, stateful: bool = False) -> str:
    """A name for exactly these weights in exactly this shape, folded or not, and the kind of graph."""
    checkpoint = fold(checkpoint)
    digest = hashlib.sha256()
    # The name and the front end are not in the graph: only how many mel bands it takes.
    shape = checkpoint.config.to_dict() | {"name": "", "features": checkpoint.config.features.mels}
    rules = [BUILDER, OPSET, MAX_WEIGHT, shape] + [STREAMING_BUILDER] * stateful
    digest.update(json.dumps([rules, sorted(ranges.items()) if ranges else None]).encode())
    for name in sorted(checkpoint.state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(checkpoint.state[name].detach().cpu().numpy()).data)
    return digest.hexdigest()[:32]


def onnx_content(checkpoint: Checkpoint, ranges: Ranges | None = None, *, stateful: bool = False) -> bytes:
    """The model's ONNX file, built unless it was built before (or always, without a place to keep it)."""
    path = cache_folder() / f"{fingerprint(checkpoint, ranges, stateful=stateful)}.onnx"
    try:
        content = path.read_bytes()
        path.touch()
        return content
    except OSError:
        pass
    try:
        export_onnx(checkpoint, path, ranges, stateful=stateful)
        _forget_oldest(path.parent)
        return path.read_bytes()
    except OSError:
        return onnx_bytes(checkpoint, ranges, stateful=stateful)


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.onnx"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[KEPT_FILES:]:
        file.unlink(missing_ok=True)
