"""What a teacher hears before it decides: one of its hidden layers, kept in 64 bytes an output beside its words, and
learnt by the student through a head that is thrown away after training.

Words say which letters come in which order, and their gradient is nearly all noise; a hidden layer says at every
moment how a sound is heard, and batches agree on it (training/LOG.md, run M).
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from acoustic.network import Network
from acoustic.network.layers import Layers
from training.errors import TrainingError

WIDTH = 64
"""Directions that are kept of a hidden layer."""
STEPS_PER_DEVIATION = 24
"""Five deviations fit into a signed byte."""
BASIS_FILE = "hidden.npz"
HEAD = "teacher_hidden"
"""What the head is called among a student's parts."""

Rows = NDArray[np.float32]


def deviations(stored: NDArray[np.int8]) -> Rows:
    """Stored bytes as numbers."""
    return stored.astype(np.float32) / STEPS_PER_DEVIATION


class Head(nn.Module):
    """Reads the teacher's hidden layer off what a layer of the student is given."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        """How many the student makes in a step."""
        self.read = nn.Linear(channels, outputs * WIDTH)
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)
        self.said: Tensor | None = None
        """[batch, outputs, WIDTH] of the last batch."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, steps] to [batch, outputs, WIDTH]."""
        x = x.mT
        said = self.read(F.layer_norm(x, x.shape[-1:]))
        return cast(Tensor, said).reshape(len(x), -1, WIDTH)

    def hear(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A hook of the layer."""
        if module.training:
            self.said = self(inputs[0])


def attach_head(network: nn.Module, layer: int) -> None:
    """Let a network say, in training, what its teacher's hidden layer is, from what goes into one of its layers."""
    block = network.blocks[-1] if isinstance(network, Network) else None
    if not isinstance(block, Layers) or not 0 < layer < len(block.layers):
        known = f"1 to {len(block.layers) - 1}" if isinstance(block, Layers) else "none"
        raise TrainingError(
            f"distil.hidden_layer is {layer}: expected one of the last block's attending layers ({known})."
        )
    assert isinstance(network, Network)
    head = Head(network.config.blocks[-1].channels, network.config.outputs_per_step)
    network.add_module(HEAD, head)
    cast(nn.ModuleList, block.layers[layer])[0].register_forward_pre_hook(head.hear)


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
