"""An exponential moving average of the weights: what evaluation and the shipped model use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EmaWeights:
    """average <- decay * average + (1 - decay) * weights after every step; buffers (batch norm) are copied.

    Early on the decay is smaller, (1 + steps) / (4 + steps): the last third of what was learnt so far, whose random
    beginning is so soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (4 + self.steps))
        moving: list[Tensor] = []
        towards: list[Tensor] = []
        trained = {name for name, _ in model.named_parameters()}
        for name, value in model.state_dict().items():
            if name in trained:
                moving.append(self.values[name])
                towards.append(value)
            else:
                self.values[name].copy_(value)
        torch._foreach_lerp_(moving, towards, 1 - decay)

    @contextmanager
    def swapped_into(self, model: nn.Module) -> Iterator[None]:
        """The model carries the averaged weights inside the `with`, its own again after it."""
        own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.values)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def state_dict(self) -> dict[str, object]:
        """For the training checkpoint."""
        return {"decay": self.decay, "steps": self.steps, "values": self.values}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """From the training checkpoint."""
        values = state["values"]
        assert isinstance(values, dict)
        self.steps = int(str(state["steps"]))
        for name, value in values.items():
            self.values[name].copy_(value)
