"""What a teacher hears before it decides: one of its hidden layers, kept in 64 bytes an output beside its words, and
learnt by the student through a head that is thrown away after training.

Words say which letters come in which order, and their gradient is nearly all noise; a hidden layer says at every
moment how a sound is heard, and batches agree on it (training/LOG.md, run M).
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast
from zipfile import BadZipFile

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from acoustic.constants import SAMPLE_RATE
from training.data.manifests import Clip
from training.data.sound import ClipError, Samples, read_clip
from training.errors import TrainingError
from training.labels import HIDDEN_WIDTH

STEPS_PER_DEVIATION = 12
"""Ten deviations of an average direction fit into a signed byte, five of the widest."""
BASIS_FILE = "hidden.npz"
BASIS_CLIPS = 200
"""The most clips that the directions are found in, and how much is heard of each: memory stays bounded."""
BASIS_SAMPLES = 30 * SAMPLE_RATE
HEAD = "teacher_hidden"
"""What the head is called among a student's parts."""

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Basis:
    """The directions in which a teacher's hidden layer differs most. The wider one is, the more it counts, but only by
    the root of its deviation."""

    hears: str
    """Which block of which teacher."""
    mean: Rows
    directions: Rows

    @staticmethod
    def of(hears: str, heard: Iterable[Rows]) -> "Basis":
        """Found in what a teacher heard, clip by clip."""
        count, total, squares = 0, np.zeros(1), np.zeros((1, 1))
        for rows in heard:
            exact = rows.astype(np.float64)
            count, total, squares = count + len(rows), total + exact.sum(0), squares + exact.T @ exact
        if count < 10 * HIDDEN_WIDTH or len(total) < HIDDEN_WIDTH:
            raise TrainingError(
                f"{hears}: {count} outputs of {len(total)} channels are too little to find {HIDDEN_WIDTH} directions "
                "in. Name manifests with a minute of speech at least, and a block that is wide enough."
            )
        mean = total / count
        variances, directions = np.linalg.eigh(squares / count - np.outer(mean, mean))
        variances, directions = (
            variances[: -HIDDEN_WIDTH - 1 : -1].clip(1e-9),
            directions[:, : -HIDDEN_WIDTH - 1 : -1],
        )
        scaled = directions * variances**-0.25 / np.sqrt(np.mean(np.sqrt(variances)))
        return Basis(hears, mean.astype(np.float32), scaled.astype(np.float32))

    @property
    def name(self) -> str:
        """Another one has another."""
        digest = hashlib.sha256(self.hears.encode() + self.mean.tobytes() + self.directions.tobytes())
        return digest.hexdigest()[:8]

    def bytes_of(self, hidden: Rows) -> NDArray[np.int8]:
        """[outputs, channels] to [outputs, HIDDEN_WIDTH]; on average a direction deviates by one."""
        along = (hidden - self.mean) @ self.directions
        steps: NDArray[np.int8] = np.clip(np.round(along * STEPS_PER_DEVIATION), -127, 127).astype(np.int8)
        return steps

    def keep(self, labels: Path) -> "Basis":
        """The basis of a folder of labels: this one, unless another labeller was quicker."""
        partial = labels / f".{BASIS_FILE}.{os.getpid()}.part"
        try:
            labels.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez(file, hears=self.hears, mean=self.mean, directions=self.directions)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(partial, labels / BASIS_FILE)
        except OSError as error:
            raise TrainingError(f"{labels / BASIS_FILE} cannot be written ({error.strerror}).") from error
        finally:
            with suppress(OSError):
                partial.unlink()
        return known_basis(labels) or self


class Hearing(Protocol):
    """A teacher that tells what one of its blocks makes of a clip (training.ear, training.live)."""

    @property
    def hears(self) -> str:
        """Which block of which teacher."""

    def hear(self, sound: Samples) -> tuple[object, Rows]:
        """Its answer, and [outputs, channels] of the block."""


def found_basis(teacher: Hearing, clips: Sequence[Clip]) -> Basis:
    """The directions in which the block's outputs differ most: in the beginnings of some clips, drawn evenly from all;
    those that cannot be read are passed over."""

    def heard() -> Iterator[Rows]:
        for clip in clips[:: -(-len(clips) // BASIS_CLIPS) or 1]:
            with suppress(ClipError):
                yield teacher.hear(read_clip(clip.audio)[:BASIS_SAMPLES])[1]

    return Basis.of(teacher.hears, heard())


def kept_basis(folder: Path, teacher: Hearing, clips: Callable[[], Sequence[Clip]]) -> Basis:
    """What a folder of labels or of a run was begun with; in a new one found now, and kept there."""
    basis = known_basis(folder) or found_basis(teacher, clips()).keep(folder)
    if basis.hears != teacher.hears:
        raise TrainingError(
            f"{folder} was begun with {basis.hears}, not with {teacher.hears}: name another folder."
        )
    return basis


def known_basis(labels: Path) -> Basis | None:
    """What a folder of labels was begun with; None in a new one."""
    path = labels / BASIS_FILE
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file) as stored:
            return Basis(str(stored["hears"]), stored["mean"], stored["directions"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise TrainingError(
            f"{path} cannot be read ({error}): what it is the key to is lost, label into another folder."
        ) from error


def deviations(stored: NDArray[np.int8]) -> Rows:
    """Stored bytes as numbers."""
    return stored.astype(np.float32) / STEPS_PER_DEVIATION


class Head(nn.Module):
    """Reads the teacher's hidden layer off what a layer of the student is given."""

    def __init__(self, channels: int, outputs_per_step: int) -> None:
        super().__init__()
        self.read = nn.Linear(channels, outputs_per_step * HIDDEN_WIDTH)
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)
        self.said: Tensor | None = None
        """[batch, outputs, HIDDEN_WIDTH] of the last batch."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, steps] to [batch, outputs, HIDDEN_WIDTH]."""
        x = x.mT
        said = self.read(F.layer_norm(x, x.shape[-1:]))
        return cast(Tensor, said).reshape(len(x), -1, HIDDEN_WIDTH)

    def hear(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A hook of the layer."""
        if module.training:
            self.said = self(inputs[0])


def attach_head(network: nn.Module, layer: int) -> None:
    """Let a network say, in training, what its teacher's hidden layer is, from what goes into one of its layers."""
    raise TrainingError(f"distil.hidden_layer is {layer}: no network has layers that it could name.")


def head_of(model: nn.Module) -> Head:
    """The head of a model, as the loop hands it over (it may be wrapped)."""
    return cast(Head, getattr(getattr(model, "module", model), HEAD))


def without_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What of a training state is the network's own."""
    return {name: value for name, value in state.items() if not name.startswith(f"{HEAD}.")}


def head_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a head, where there is one."""
    head = getattr(model, HEAD, None)
    if isinstance(head, Head):
        yield from head.parameters()


def hidden_loss(said: Tensor, wanted: Tensor, outputs: Tensor, late: int) -> Tensor:
    """Mean square of what is amiss in each row, a direction and an output (about 1 for a head that knows nothing).

    What the teacher hears at an output is asked for `late` outputs later. Rows without outputs count nothing.
    """
    said, wanted = said[:, late:].float(), wanted[:, : max(0, said.shape[1] - late)]
    index = torch.arange(said.shape[1], device=said.device)
    inside = index[None, :] < (outputs.to(said.device) - late)[:, None]
    apart = (said - wanted).square().mean(-1)
    return torch.where(inside, apart, 0.0).sum(1) / inside.sum(1).clamp(min=1)
