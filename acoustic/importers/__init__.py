"""Weights that others published, brought into Silica's own checkpoint format without trusting their files."""

from pathlib import Path

from acoustic import checkpoint
from acoustic.checkpoint import Checkpoint
from acoustic.checkpoint_header import FILE_NAME, SUFFIX
from acoustic.errors import AcousticError
from acoustic.importers import deeplearning_examples, folded, nemo

__all__ = ["read"]


def read(path: Path) -> Checkpoint:
    """A checkpoint from whichever layout the file or folder has."""
    if not path.exists():
        raise AcousticError(f"There is no {path}.")
    if path.suffix == SUFFIX or (path / FILE_NAME).is_file():
        return checkpoint.load(path)
    if folded.recognizes(path):
        return folded.read(path)
    if nemo.recognizes(path):
        return nemo.read(path)
    if deeplearning_examples.recognizes(path):
        return deeplearning_examples.read(path)
    raise AcousticError(
        f"{path} is in no layout known here: a Silica checkpoint (.safetensors), a NeMo archive (.nemo), a "
        "DeepLearningExamples checkpoint (.pt), or a folder with config.json and folded QuartzNet weights."
    )
