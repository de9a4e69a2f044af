"""Folds batch norm and weight norm into the preceding convolutions: equal outputs, fewer operations."""

from dataclasses import replace

from torch import Tensor

from acoustic.checkpoint import Checkpoint, StateDict

_NORM_PARTS = ("weight", "bias", "running_mean", "running_var")


def fold(checkpoint: Checkpoint) -> Checkpoint:
    """The model with each norm replaced by a bias. Layer norm depends on its input and cannot be folded."""
    config = checkpoint.config
    if config.norm not in ("batch", "weight"):
        return checkpoint
    state: StateDict = {}
    for name, tensor in checkpoint.state.items():
        path, _, last = name.rpartition(".")
        if path.endswith(".norm"):
            continue
        if name.endswith(".conv.parametrizations.weight.original1"):
            conv = name.removesuffix(".parametrizations.weight.original1")
            gain = checkpoint.state[f"{conv}.parametrizations.weight.original0"]
            state[f"{conv}.weight"] = _fold_weight_norm(tensor, gain)
        elif ".parametrizations." in name:
            continue
        elif path.endswith(".conv") and last == "weight" and config.norm == "batch":
            layer = path.removesuffix(".conv")
            norm = {part: checkpoint.state[f"{layer}.norm.{part}"] for part in _NORM_PARTS}
            state[f"{path}.weight"], state[f"{path}.bias"] = _fold_batch_norm(
                tensor, norm, config.norm_epsilon
            )
        else:
            state[name] = tensor
    return Checkpoint(replace(config, norm="folded"), state, checkpoint.card)


def _fold_weight_norm(direction: Tensor, gain: Tensor) -> Tensor:
    length = direction.double().flatten(1).norm(dim=1)
    weight: Tensor = direction.double() * (gain.double() / length[:, None, None])
    return weight.float()


def _fold_batch_norm(weight: Tensor, norm: dict[str, Tensor], epsilon: float) -> tuple[Tensor, Tensor]:
    # In double precision, because the running variance of a dead channel can be tiny.
    scale = norm["weight"].double() / (norm["running_var"].double() + epsilon).sqrt()
    bias = norm["bias"].double() - norm["running_mean"].double() * scale
    return (weight.double() * scale[:, None, None]).float(), bias.float()
