"""Builds small checkpoints in the formats of other projects, from Silica networks."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from acoustic.architectures import jasper, quartznet
from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.network import build


def narrow(config: ModelConfig) -> ModelConfig:
    """The same layers with a few channels."""
    return replace(config, blocks=tuple(replace(block, channels=8, dropout=0.0) for block in config.blocks))


MODELS = {
    "quartznet": narrow(quartznet("x", 5, 2)),
    "quartznet grouped": narrow(quartznet("x", 5, 2, groups=2)),
    "jasper": narrow(jasper("x", 5, 2)),
    "jasper dense": narrow(jasper("x", 5, 2, "dense_residual")),
    "jasper plain": narrow(jasper("x", 5, 2, "none")),
}


def random_checkpoint(config: ModelConfig) -> Checkpoint:
    torch.manual_seed(6)
    state = {
        name: torch.rand_like(tensor) + 0.5 if tensor.is_floating_point() else tensor.clone()
        for name, tensor in build(config).state_dict().items()
    }
    return Checkpoint(config, state)


def foreign_names(model: Checkpoint, style: str) -> dict[str, torch.Tensor]:
    """The state dict under the tensor names that another project documents.

    style: `nemo`, `dle jasper`, `dle quartznet` or `dle old`.
    """
    encoder = {"nemo": "encoder.encoder", "dle old": "jasper_encoder.encoder"}.get(style, "encoder.layers")
    decoder = {"nemo": "decoder.decoder_layers", "dle old": "jasper_decoder.decoder_layers"}.get(
        style, "decoder.layers"
    )
    main = "mconv" if style in ("nemo", "dle quartznet") else "conv"
    infix = ".conv" if style == "nemo" else ""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state.items():
        parts = name.split(".")
        if parts[0] == "output":
            state[f"{decoder}.0.{parts[1]}"] = tensor
            continue
        block = model.config.blocks[int(parts[1])]
        index, what, last = int(parts[3]), parts[4], parts[5]
        if parts[2] == "bypasses":
            path = f"res.{index}.0{infix}" if what == "conv" else f"res.{index}.1"
        elif block.separable:
            parts_each = 6 if block.groups > 1 else 5
            offset = {"depthwise": 0, "conv": 1, "norm": 2}[what]
            path = f"{main}.{parts_each * index + offset}" + ("" if what == "norm" else infix)
        else:
            path = f"{main}.{4 * index + (what == 'norm')}" + ("" if what == "norm" else infix)
        state[f"{encoder}.{parts[1]}.{path}.{last}"] = tensor
    return state


def nemo_table(config: ModelConfig) -> dict[str, object]:
    rows = [
        {
            "filters": block.channels,
            "kernel": [block.kernel],
            "repeat": block.repeat,
            "stride": [block.stride],
            "dilation": [block.dilation],
            "dropout": 0.0,
            "residual": block.residual != "none",
            "residual_dense": block.residual == "dense_residual",
            "separable": block.separable,
            "groups": block.groups,
        }
        for block in config.blocks
    ]
    return {
        "preprocessor": {"normalize": "per_feature", "window_size": 0.02, "features": 64, "n_fft": 512},
        "encoder": {"feat_in": 64, "activation": "relu", "conv_mask": True, "jasper": rows},
        "decoder": {"num_classes": 28, "vocabulary": list(config.alphabet)},
    }


def pickled(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def archive(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def nemo_members(model: Checkpoint) -> dict[str, bytes]:
    state = foreign_names(model, "nemo")
    state["preprocessor.featurizer.window"] = torch.zeros(320)
    state["preprocessor.featurizer.fb"] = torch.zeros(1, 64, 257)
    return {
        "./model_config.yaml": yaml.safe_dump(nemo_table(model.config)).encode(),
        "./model_weights.ckpt": pickled(state),
    }


def assert_equal(imported: Checkpoint, model: Checkpoint) -> None:
    assert imported.config.blocks == model.config.blocks
    assert set(imported.state) == set(model.state)
    torch.manual_seed(2)
    features, lengths = torch.randn(2, 64, 70), torch.tensor([70, 41])
    with torch.inference_mode():
        torch.testing.assert_close(
            imported.network()(features, lengths), model.network()(features, lengths), atol=0, rtol=0
        )


def folded_folder(folder: Path, model: Checkpoint) -> Path:
    """A folder in the folded QuartzNet format."""
    tensors, layers = {}, []
    for index, block in enumerate(model.config.blocks):
        layers.append(
            {
                "name": f"b{index}",
                "type": "separable" if block.separable else "pointwise",
                "repeat": block.repeat,
                "residual": block.residual != "none",
                "kernel": block.kernel,
                "stride": block.stride,
                "dilation": block.dilation,
                "pad": block.kernel // 2 * block.dilation,
                "out": block.channels,
            }
        )
        for sub_block in range(block.repeat):
            ours = f"blocks.{index}.units.{sub_block}"
            if block.separable:
                tensors[f"b{index}.r{sub_block}.dw"] = model.state[f"{ours}.depthwise.weight"][:, 0]
            tensors[f"b{index}.r{sub_block}.pw"] = model.state[f"{ours}.conv.weight"][:, :, 0]
            tensors[f"b{index}.r{sub_block}.bias"] = model.state[f"{ours}.conv.bias"]
        if block.residual != "none":
            tensors[f"b{index}.res.pw"] = model.state[f"blocks.{index}.bypasses.0.conv.weight"][:, :, 0]
            tensors[f"b{index}.res.bias"] = model.state[f"blocks.{index}.bypasses.0.conv.bias"]
    layers.append({"name": "dec", "type": "decoder", "repeat": 1, "residual": False})
    tensors["dec.pw"] = model.state["output.weight"][:, :, 0]
    tensors["dec.bias"] = model.state["output.bias"]
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "w.safetensors")
    table = {
        "name": "x",
        "weights": "w.safetensors",
        "alphabet": list(model.config.alphabet),
        "layers": layers,
    }
    (folder / "config.json").write_text(json.dumps(table))
    return folder
