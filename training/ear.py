"""The teacher's side of `training.hidden`: what one of its blocks makes of a clip."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic.checkpoint import Checkpoint
from acoustic.export import onnx_bytes
from acoustic.features import FrontEnd
from acoustic.onnx_cache import fingerprint
from acoustic.quantization.ranges import known_ranges, needed_ranges
from acoustic.runtime.backend import in_pieces, whole_features_of
from acoustic.runtime.cpu import open_session
from acoustic.windows import LogProbs, carries
from training.data.sound import Samples
from training.errors import TrainingError
from training.hidden import Rows


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
        self.hears = f"block {block} of {self.config.name} ({fingerprint(checkpoint, ranges)})"
        """What its rows are, for whoever keeps them."""
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
