"""Starting from a trained model: another alphabet, frozen parameters."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from acoustic.checkpoint import Checkpoint, load_state
from acoustic.config import ModelConfig
from acoustic.network import Network, build
from acoustic.network.modules import BatchNorm
from training.errors import TrainingError


def start_from(checkpoint: Checkpoint, alphabet: str | None = None) -> tuple[Network, ModelConfig]:
    """The network of a checkpoint, ready for training. With another alphabet it gets a new output layer, in which the
    blank and the characters that both alphabets have keep their weights.
    """
    config = checkpoint.config
    state = dict(checkpoint.state)
    if alphabet is not None and alphabet != config.alphabet:
        changed = replace(config, alphabet=alphabet)
        state.update(_new_output_layer(changed, config, state))
        config = changed
    network = build(config)
    load_state(network, {name: tensor.clone() for name, tensor in state.items()})
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    return network, config


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Freeze the parameters whose names match a pattern such as `blocks.0.*`. Returns the number of parameters that
    are still trained. Raises on a pattern that matches nothing.
    """
    for pattern in patterns:
        matching = [weight for name, weight in model.named_parameters() if fnmatchcase(name, pattern)]
        if not matching:
            names = ", ".join(name for name, _ in list(model.named_parameters())[:3])
            raise TrainingError(f"No parameter matches {pattern!r}; expected names such as {names}.")
        for weight in matching:
            weight.requires_grad_(False)
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def train_mode(model: nn.Module) -> None:
    """Training mode, except for frozen batch norms, whose statistics stay as they are."""
    model.train()
    for module in model.modules():
        if isinstance(module, BatchNorm) and not any(weight.requires_grad for weight in module.parameters()):
            module.eval()


def _new_output_layer(new: ModelConfig, old: ModelConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weight and bias of the output layer for another alphabet."""
    fresh = build(new).output
    results = {}
    for name, initial in (("output.weight", fresh.weight), ("output.bias", fresh.bias)):
        assert initial is not None
        values = initial.detach().clone().reshape(new.outputs_per_step, new.classes, *initial.shape[1:])
        trained = state[name].reshape(old.outputs_per_step, old.classes, *initial.shape[1:])
        with torch.no_grad():
            for label, character in enumerate(new.alphabet):
                if character in old.alphabet:
                    values[:, label] = trained[:, old.alphabet.index(character)]
            values[:, new.blank] = trained[:, old.blank]
        results[name] = values.reshape(initial.shape)
    return results
