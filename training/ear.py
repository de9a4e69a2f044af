"""The teacher's side of `training.hidden`: what one of its blocks makes of a clip, and the directions that are kept."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.calibration import known_ranges, needed_ranges
from acoustic.checkpoint import Checkpoint
from acoustic.export import onnx_bytes
from acoustic.features import FrontEnd
from acoustic.runtime.backend import in_pieces, whole_features_of
from acoustic.runtime.cpu import open_session
from acoustic.windows import LogProbs, carries
from training.data.manifests import Clip
from training.data.sound import ClipError, Samples, read_clip
from training.errors import TrainingError
from training.hidden import BASIS_FILE, STEPS_PER_DEVIATION, WIDTH, Rows

BASIS_CLIPS = 200
"""How many clips the directions are found in."""


class Ear:
    """A teacher that says, of each clip, its log-probabilities and what one of its blocks makes, on one CPU thread."""

    def __init__(self, checkpoint: Checkpoint, block: int, precision: str | None = None) -> None:
        self.config = checkpoint.config
        if carries(self.config):
            raise TrainingError(
                f"{self.config.name} carries state from window to window; the hidden layers of such a teacher cannot "
                "be kept."
            )
        ranges = known_ranges(checkpoint) if precision is None else None
        if precision == "int8":
            ranges = needed_ranges(checkpoint)
        self._front_end = FrontEnd(self.config.features)
        self._session = open_session(onnx_bytes(checkpoint, ranges, hidden=block))
        self.block = block
        self._channels = self.config.blocks[block].channels

    @torch.no_grad()
    def hear(self, sound: Samples) -> tuple[LogProbs, Rows]:
        """[outputs, classes] and [outputs, channels]."""
        features = whole_features_of(self._front_end, self.config.features, [sound])
        nothing = np.zeros((0, self.config.classes + self._channels), np.float32)
        whole = np.concatenate([nothing, *in_pieces(self.config, features, self._run)])
        return whole[:, : self.config.classes], whole[:, self.config.classes :]

    def _run(self, features: Tensor) -> NDArray[np.float32]:
        log_probs, hidden = self._session.run(None, {"features": features[None].numpy()})
        if log_probs.shape[1] != hidden.shape[-1]:
            raise TrainingError(
                f"That block of {self.config.name} makes {hidden.shape[-1]} steps where the network has "
                f"{log_probs.shape[1]} outputs: name one behind the last stride."
            )
        return np.concatenate([log_probs[0], hidden[0, :, 0].T], axis=1)


@dataclass(frozen=True)
class Basis:
    """The directions in which a block's outputs differ most. The wider one is, the more it counts, but only by the root
    of its deviation."""

    block: int
    mean: Rows
    directions: Rows

    @staticmethod
    def of(block: int, heard: Sequence[Rows]) -> "Basis":
        """Found in what a teacher heard of some clips."""
        rows = np.concatenate(heard or [np.zeros((0, 0), np.float32)]).astype(np.float64)
        if len(rows) < 10 * WIDTH or rows.shape[1] < WIDTH:
            raise TrainingError(
                f"{len(rows)} outputs of {rows.shape[1]} channels are too little to find {WIDTH} directions in: name "
                "manifests with a minute of speech at least, and a block that is wide enough."
            )
        mean = rows.mean(0)
        variances, directions = np.linalg.eigh(np.cov((rows - mean).T))
        variances, directions = variances[: -WIDTH - 1 : -1].clip(1e-9), directions[:, : -WIDTH - 1 : -1]
        scaled = directions * variances**-0.25 / np.sqrt(np.mean(np.sqrt(variances)))
        return Basis(block, mean.astype(np.float32), scaled.astype(np.float32))

    def bytes_of(self, hidden: Rows) -> NDArray[np.int8]:
        """[outputs, channels] to [outputs, WIDTH]; on average a direction deviates by one."""
        along = (hidden - self.mean) @ self.directions
        steps: NDArray[np.int8] = np.clip(np.round(along * STEPS_PER_DEVIATION), -127, 127).astype(np.int8)
        return steps

    def keep(self, labels: Path) -> "Basis":
        """The basis of a folder of labels: this one, unless another labeller was quicker."""
        labels.mkdir(parents=True, exist_ok=True)
        partial = labels / f".{BASIS_FILE}.{os.getpid()}.part"
        try:
            with partial.open("wb") as file:
                np.savez(file, block=self.block, mean=self.mean, directions=self.directions)
            os.link(partial, labels / BASIS_FILE)
        except FileExistsError:
            pass
        finally:
            partial.unlink(missing_ok=True)
        return cast(Basis, known_basis(labels, self.block))


def found_basis(ear: Ear, clips: Sequence[Clip]) -> Basis:
    """The basis of some clips, drawn evenly from all; those that cannot be read are passed over."""
    heard = []
    for clip in clips[:: max(1, len(clips) // BASIS_CLIPS)]:
        with suppress(ClipError):
            heard.append(ear.hear(read_clip(clip.audio))[1])
    return Basis.of(ear.block, heard)


def known_basis(labels: Path, block: int) -> Basis | None:
    """What a folder of labels was begun with; None in a new one."""
    path = labels / BASIS_FILE
    if not path.exists():
        return None
    try:
        with np.load(path) as stored:
            basis = Basis(int(stored["block"]), stored["mean"], stored["directions"])
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(f"{path} cannot be read ({error}): remove it and label again.") from error
    if basis.block != block:
        raise TrainingError(
            f"The labels in {labels} hold block {basis.block} of their teacher, not block {block}: name another folder."
        )
    return basis
