"""A teacher inside the step: it hears what the student hears, however altered (function matching).

For a GPU: on a CPU the answers are better stored (`silica label`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acoustic.checkpoint import Checkpoint
from acoustic.features import FrontEnd
from acoustic.onnx_cache import fingerprint
from training.augment import Altered
from training.data.feed import Batch
from training.data.sound import Samples
from training.distill import Answer
from training.errors import TrainingError
from training.features import batch_features
from training.hidden import Basis, Rows


class LiveTeacher:
    """The teacher's network, and of a block of it, where one is asked for, the directions that `basis` names."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, block: int | None = None) -> None:
        self.config = checkpoint.config
        self.network = checkpoint.network().to(device).eval().requires_grad_(False)
        self.front_end = FrontEnd(self.config.features).to(device)
        self.basis: tuple[Tensor, Tensor] | None = None
        self._device = device
        self._made: Tensor | None = None
        self.hears = ""
        if block is not None:
            if not 0 <= block < len(self.network.blocks):
                raise TrainingError(
                    f"distil.hidden_block is {block}: the blocks of {self.config.name} are numbered 0 to "
                    f"{len(self.network.blocks) - 1}."
                )
            self.hears = f"block {block} of {self.config.name} ({fingerprint(checkpoint)})"
            self.network.blocks[block].register_forward_hook(self._remember)

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...], made: Tensor) -> None:
        self._made = made

    def learn(self, basis: Basis) -> None:
        """Answer with these directions from now on."""
        self.basis = (
            torch.from_numpy(basis.mean).to(self._device),
            torch.from_numpy(basis.directions).to(self._device),
        )

    @torch.no_grad()
    def hear(self, sound: Samples) -> tuple[Tensor, Rows]:
        """Log-probabilities of one clip [outputs, classes], and what the block makes of it [outputs, channels]."""
        samples = torch.from_numpy(sound).to(self._device)[None]
        log_probs, counted = self._answered(samples, torch.tensor([len(sound)]))
        assert self._made is not None
        made, self._made = self._made, None
        return log_probs[0], made[0, :, : int(counted)].T.float().cpu().numpy()

    @torch.no_grad()
    def answer(self, batch: Batch, altered: Altered, outputs: int) -> Answer:
        """All rows; words for every one (used where the clip has no transcript, or was cut and joined)."""
        log_probs, counted = self._answered(altered.sound, altered.lengths)
        log_probs = _as_long(log_probs.float(), outputs)
        counted = counted.clamp(max=outputs)
        made, self._made, hidden = self._made, None, None
        if made is not None and self.basis is not None:
            mean, directions = self.basis
            hidden = _as_long((made.mT.float() - mean) @ directions, outputs)
        words = greedy_labels(log_probs, counted, self.config.blank)
        return Answer(log_probs, counted, words, hidden, None if hidden is None else counted)

    def _answered(self, sound: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        features, frames = batch_features(self.front_end, sound, lengths)
        log_probs, counted = self.network(features, frames)
        if self._made is not None and self._made.shape[-1] != log_probs.shape[1]:
            raise TrainingError(
                f"{self.hears} makes {self._made.shape[-1]} steps where the network has {log_probs.shape[1]} outputs: "
                "name one behind the last stride."
            )
        return log_probs, counted


def _as_long(rows: Tensor, outputs: int) -> Tensor:
    """[rows, outputs, any], cut or filled with noughts."""
    return F.pad(rows, (0, 0, 0, max(0, outputs - rows.shape[1])))[:, :outputs]


def greedy_labels(log_probs: Tensor, outputs: Tensor, blank: int) -> tuple[Tensor, ...]:
    """The labels of the best path of each row, repeats and blanks taken out, spaces at the ends too."""
    best = log_probs.argmax(-1)
    index = torch.arange(best.shape[1], device=best.device)[None, :]
    fresh = torch.ones_like(best, dtype=torch.bool)
    fresh[:, 1:] = best[:, 1:] != best[:, :-1]
    kept = fresh & (best != blank) & (index < outputs.to(best.device)[:, None])
    counts = kept.sum(1).tolist()
    return tuple(torch.split(best[kept], counts))
