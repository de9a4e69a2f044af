"""Imports QuartzNet with folded batch norm: a folder with `config.json` and one safetensors file.

Tensors are named `b<block>.r<sub-block>.{dw,pw,bias}`, `b<block>.res.{pw,bias}` and `dec.{pw,bias}`.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from acoustic.architectures import FIXED
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig, ModelConfig
from acoustic.errors import AcousticError


def recognizes(path: Path) -> bool:
    """Whether the path is a folder in this format."""
    return path.is_dir() and (path / "config.json").is_file()


def read(path: Path) -> Checkpoint:
    """Read the folder."""
    try:
        table = json.loads((path / "config.json").read_text())
        weights_name = str(table["weights"])
        layers = list(table["layers"])
        alphabet = "".join(table["alphabet"])
        if Path(weights_name).name != weights_name:
            raise AcousticError(f"{path}: config.json names weights outside the folder ({weights_name!r}).")
        tensors = load_file(path / weights_name)
        blocks = tuple(_block(layer) for layer in layers if layer["type"] != "decoder")
        config = ModelConfig(
            name=str(table["name"]),
            features=replace(FIXED, normalize="utterance"),
            blocks=blocks,
            alphabet=alphabet,
            norm="folded",
        )
        state = _state(layers, tensors)
    except (OSError, json.JSONDecodeError, SafetensorError) as error:
        raise AcousticError(f"{path} cannot be read as a folded QuartzNet: {error}.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise AcousticError(f"{path}: config.json has a missing or invalid entry: {error!r}.") from error
    checkpoint = Checkpoint(config, state, _card(path, str(table["name"])))
    checkpoint.network()  # raises if shapes do not fit
    return checkpoint


def _card(path: Path, title: str) -> dict[str, str]:
    source = path / "SOURCE.md"
    return {
        "title": title,
        "imported_from": "folded QuartzNet",
        "source": source.read_text() if source.is_file() else "",
    }


def _block(layer: dict[str, Any]) -> BlockConfig:
    separable = layer["type"] == "separable"
    block = BlockConfig(
        kernel=layer["kernel"],
        channels=layer["out"],
        repeat=layer["repeat"],
        stride=layer["stride"],
        dilation=layer["dilation"],
        separable=separable,
        residual="residual" if layer["residual"] else "none",
    )
    if block.padding(0) != (layer["pad"], layer["pad"]):
        raise AcousticError(f"Layer {layer['name']}: padding {layer['pad']} is not symmetric.")
    return block


def _state(layers: list[dict[str, Any]], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for index, layer in enumerate(layers):
        name = layer["name"]
        if layer["type"] == "decoder":
            state["output.weight"] = tensors[f"{name}.pw"].float()[:, :, None]
            state["output.bias"] = tensors[f"{name}.bias"].float()
            continue
        for sub_block in range(layer["repeat"]):
            ours, theirs = f"blocks.{index}.units.{sub_block}", f"{name}.r{sub_block}"
            if layer["type"] == "separable":
                state[f"{ours}.depthwise.weight"] = tensors[f"{theirs}.dw"].float()[:, None, :]
            state[f"{ours}.conv.weight"] = tensors[f"{theirs}.pw"].float()[:, :, None]
            state[f"{ours}.conv.bias"] = tensors[f"{theirs}.bias"].float()
        if layer["residual"]:
            state[f"blocks.{index}.bypasses.0.conv.weight"] = tensors[f"{name}.res.pw"].float()[:, :, None]
            state[f"blocks.{index}.bypasses.0.conv.bias"] = tensors[f"{name}.res.bias"].float()
    return state
