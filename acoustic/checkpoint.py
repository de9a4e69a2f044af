"""One safe file for a model: tensors in safetensors, ModelConfig and model card as JSON in its metadata.

Stored in FP32, FP16 or INT8 (with a scale for each output channel); read back as FP32. Nothing is unpickled.
Folding batch norm away is in `acoustic.network.folding`; reading the metadata alone in `acoustic.checkpoint_header`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from acoustic.checkpoint_header import FORMAT, described, file_in
from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.files import replacing_file
from acoustic.network import Network, build

SCALE_SUFFIX = ".int8_scale"
MAX_WEIGHT = 63
"""INT8 weights use 7 of their 8 bits: without VNNI (AVX2) products of two neighbours are added in 16 bits,
which saturate above 2 x 255 x 64. So a file gives the same words on every machine. It is stored in the very steps
that it runs in: nothing is rounded twice."""

Dtype = Literal["fp32", "fp16", "int8"]
StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A model at rest: its shape, its weights (FP32) and its card (title, licence, sources, figures)."""

    config: ModelConfig
    state: StateDict
    card: Mapping[str, Any] = field(default_factory=dict)

    def network(self) -> Network:
        """The network with these weights, ready to run (not to train)."""
        with torch.device("meta"):
            network = build(self.config)
        load_state(network, self.state)
        return network.eval()


def load_state(network: Network, state: StateDict) -> None:
    """Put weights into a network; one that does not fit is refused in words."""
    expected = network.state_dict()
    missing = sorted(set(expected) - set(state))
    surplus = sorted(set(state) - set(expected))
    if missing or surplus:
        raise AcousticError(
            f"The weights do not fit the network `{network.config.name}`: "
            f"{len(missing)} missing (such as {', '.join(missing[:3]) or 'none'}), "
            f"{len(surplus)} unknown (such as {', '.join(surplus[:3]) or 'none'})."
        )
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise AcousticError(
                f"The weight {name} has the shape {tuple(state[name].shape)}, "
                f"the network `{network.config.name}` expects {tuple(tensor.shape)}."
            )
    network.load_state_dict(state, assign=True)


def save(
    folder_or_file: str | Path,
    config: ModelConfig,
    state: Mapping[str, Tensor],
    card: Mapping[str, Any] | None = None,
    dtype: Dtype = "fp32",
) -> Path:
    """Write a checkpoint. The file appears whole or not at all."""
    path = file_in(Path(folder_or_file))
    stored: StateDict = {}
    for name, tensor in state.items():
        plain = tensor.detach().to("cpu").contiguous()
        if not plain.is_floating_point():
            stored[name] = plain.clone()
        elif dtype == "int8" and plain.dim() >= 2:
            stored[name], stored[name + SCALE_SUFFIX] = quantize(plain)
        else:
            stored[name] = plain.to(torch.float32 if dtype == "fp32" else torch.float16).clone()
            if not torch.isfinite(stored[name]).all():
                raise AcousticError(f"The weight {name} is not finite in {dtype}: nothing was written.")
    metadata = {
        "format": FORMAT,
        "config": json.dumps(config.to_dict()),
        "card": json.dumps(dict(card or {})),
    }
    try:
        with replacing_file(path) as partial:
            save_file(stored, partial, metadata=metadata)
    except SafetensorError as error:  # a full disk, in its own kind of error
        raise AcousticError(f"{path} could not be written: {error}.") from error
    return path


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint file, or the `model.safetensors` of a folder."""
    file = file_in(Path(path))
    try:
        with safe_open(file, framework="pt") as opened:
            config, card = described(file, opened.metadata())
            stored = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise AcousticError(f"{file} cannot be read as a model: {error}.") from error
    return Checkpoint(config, dict(_restored(file, stored)), card)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight as INT8 and one scale for each output channel, so that weight = int8 * scale."""
    flat = weight.float().flatten(1)
    scale = (flat.abs().amax(dim=1) / MAX_WEIGHT).clamp(min=1e-12)
    whole = torch.round(flat / scale[:, None]).to(torch.int8)
    return whole.reshape(weight.shape).contiguous(), scale


def quantize_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as it comes back from a file of INT8 weights."""
    state: StateDict = {}
    for name, tensor in checkpoint.state.items():
        if tensor.is_floating_point() and tensor.dim() >= 2:
            whole, scale = quantize(tensor)
            tensor = _multiplied(whole, scale)
        elif tensor.is_floating_point():
            tensor = tensor.half().float()
        state[name] = tensor
    return replace(checkpoint, state=state)


def _multiplied(whole: Tensor, scale: Tensor) -> Tensor:
    restored: Tensor = whole.float() * scale.float().reshape(-1, *(1,) * (whole.dim() - 1))
    return restored


def _restored(file: Path, stored: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    restored = []
    for name, tensor in stored.items():
        if name.endswith(SCALE_SUFFIX):
            continue
        if tensor.dtype == torch.int8:
            scale = stored.get(name + SCALE_SUFFIX)
            if scale is None or scale.shape != tensor.shape[:1]:
                raise AcousticError(f"{file}: the INT8 weight {name} lacks a scale for each output channel.")
            tensor = _multiplied(tensor, scale)
        elif tensor.is_floating_point():
            tensor = tensor.float()
        restored.append((name, tensor))
    return restored
