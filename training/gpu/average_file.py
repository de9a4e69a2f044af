"""The average of the weights as a checkpoint file, written again and again during a run.

It can be written in numbered pieces too, for a way out that lets only small files through:
`cat average-4611.?of2 > average.safetensors`, where 4611 is the step.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from acoustic import checkpoint
from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.files import write_file

log = logging.getLogger("silica.training")

AVERAGE = "average.safetensors"


@dataclass(frozen=True)
class AverageFile:
    """`average.safetensors` in a run's folder, written every `every_s` seconds and at the end."""

    folder: Path
    dtype: Literal["fp32", "fp16"] = "fp32"
    pieces: int = 1
    every_s: float = 45.0

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / AVERAGE

    def write(
        self, config: ModelConfig, state: Mapping[str, Tensor], card: Mapping[str, Any], step: int
    ) -> None:
        """Write the file, and its pieces. A weight that overflows FP16 makes it FP32."""
        try:
            checkpoint.save(self.path, config, state, card, self.dtype)
        except AcousticError as error:
            if self.dtype == "fp32":
                raise
            log.warning("%s Written in FP32 instead.", error)
            checkpoint.save(self.path, config, state, card)
        if self.pieces > 1:
            self._cut(step)

    def _cut(self, step: int) -> None:
        """The pieces carry the step in their names: pieces of two averages are not mixed up."""
        content, stem = self.path.read_bytes(), self.path.stem
        size = -(-len(content) // self.pieces)
        written = set()
        for number in range(self.pieces):
            piece = self.folder / f"{stem}-{step}.{number}of{self.pieces}"
            write_file(piece, content[number * size : (number + 1) * size])
            written.add(piece)
        for old in set(self.folder.glob(f"{stem}-*.?of*")) - written:
            old.unlink()
