"""Beginning from a trained model: another alphabet, frozen parts. The loop that follows is the ordinary
one.
"""

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
    """The network of a checkpoint, ready to be trained on; with another alphabet its output layer is made
    anew.

    Characters that both alphabets have, and the blank, keep what they know.
    """
    config = checkpoint.config
    state = dict(checkpoint.state)
    if alphabet is not None and alphabet != config.alphabet:
        changed = replace(config, alphabet=alphabet)
        state.update(_output_for(changed, config, state))
        config = changed
    network = build(config)
    load_state(network, {name: tensor.clone() for name, tensor in state.items()})
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    return network, config


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Freeze the parameters whose names match a pattern such as `blocks.0.*`; answers how many parameters
    remain.

    A pattern that matches nothing is a mistake and is named.
    """
    for pattern in patterns:
        matching = [weight for name, weight in model.named_parameters() if fnmatchcase(name, pattern)]
        if not matching:
            names = ", ".join(name for name, _ in list(model.named_parameters())[:3])
            raise TrainingError(f"No parameter matches {pattern!r}; they are named like {names}.")
        for weight in matching:
            weight.requires_grad_(False)
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def train_mode(model: nn.Module) -> None:
    """Training mode, except for the statistics of frozen norms: those stay as they were learnt."""
    model.train()
    for module in model.modules():
        if isinstance(module, BatchNorm) and not any(weight.requires_grad for weight in module.parameters()):
            module.eval()


def _output_for(wanted: ModelConfig, known: ModelConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weight and bias of the output layer for another alphabet."""
    fresh = build(wanted).output
    results = {}
    for name, new in (("output.weight", fresh.weight), ("output.bias", fresh.bias)):
        assert new is not None
        shape = (wanted.outputs_per_step, wanted.classes, *new.shape[1:])
        made = new.detach().clone().reshape(shape)
        old = state[name].reshape(known.outputs_per_step, known.classes, *new.shape[1:])
        with torch.no_grad():
            for place, character in enumerate(wanted.alphabet):
                if character in known.alphabet:
                    made[:, place] = old[:, known.alphabet.index(character)]
            made[:, wanted.blank] = old[:, known.blank]
        results[name] = made.reshape(new.shape)
    return results
