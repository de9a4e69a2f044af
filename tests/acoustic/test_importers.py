"""Foreign layouts: archives made here from our own networks come back equal, unsafe ones are refused."""

import gzip
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from acoustic import importers
from acoustic.catalogue import untrained
from acoustic.checkpoint import Checkpoint
from acoustic.config import jasper, quartznet
from acoustic.errors import AcousticError
from acoustic.folding import fold
from acoustic.importers import untrusted
from acoustic.network import build
from acoustic.shape import ModelConfig

TEACHER = Path(__file__).parents[3] / "shared" / "models" / "quartznet15x5-en"


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


def lived_in(config: ModelConfig) -> Checkpoint:
    torch.manual_seed(6)
    state = {
        name: torch.rand_like(tensor) + 0.5 if tensor.is_floating_point() else tensor.clone()
        for name, tensor in build(config).state_dict().items()
    }
    return Checkpoint(config, state)


def foreign_names(model: Checkpoint, style: str) -> dict[str, torch.Tensor]:
    """The state dict under the names of another project, written down from its documentation.

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
            place = f"res.{index}.0{infix}" if what == "conv" else f"res.{index}.1"
        elif block.separable:
            each = 6 if block.groups > 1 else 5
            offset = {"depthwise": 0, "conv": 1, "norm": 2}[what]
            place = f"{main}.{each * index + offset}" + ("" if what == "norm" else infix)
        else:
            place = f"{main}.{4 * index + (what == 'norm')}" + ("" if what == "norm" else infix)
        state[f"{encoder}.{parts[1]}.{place}.{last}"] = tensor
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


def saved(value: object) -> bytes:
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
        "./model_weights.ckpt": saved(state),
    }


def assert_equal(imported: Checkpoint, model: Checkpoint) -> None:
    assert imported.config.blocks == model.config.blocks
    assert set(imported.state) == set(model.state)
    torch.manual_seed(2)
    sound, lengths = torch.randn(2, 64, 70), torch.tensor([70, 41])
    with torch.inference_mode():
        torch.testing.assert_close(
            imported.network()(sound, lengths), model.network()(sound, lengths), atol=0, rtol=0
        )


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("kind", MODELS)
def test_nemo_archives_come_back_equal(tmp_path: Path, kind: str, mode: str) -> None:
    model = lived_in(MODELS[kind])
    imported = importers.read(archive(tmp_path / "model.nemo", nemo_members(model), mode))
    assert_equal(imported, model)
    assert imported.config.features.normalise == "utterance"
    assert imported.config.features.log_floor == 2.0**-24
    assert imported.card["imported_from"] == "NVIDIA NeMo archive"


def test_nemo_reads_other_alphabets_and_older_tables(tmp_path: Path) -> None:
    model = lived_in(replace(MODELS["jasper"], alphabet=" abcäöüß"))
    table = nemo_table(model.config)
    table = {name: {"cls": "x", "params": section} for name, section in table.items()}
    members = nemo_members(model) | {"./model_config.yaml": yaml.safe_dump({"model": table}).encode()}
    imported = importers.read(archive(tmp_path / "m.nemo", members))
    assert imported.config.alphabet == " abcäöüß"
    assert_equal(imported, model)


@pytest.mark.parametrize("vocabulary", [True, False])
def test_nemo_archives_from_before_1_0(tmp_path: Path, vocabulary: bool) -> None:
    """Two files of weights, and the settings one level deeper."""
    model = lived_in(MODELS["quartznet"])
    sections = nemo_table(model.config)
    if not vocabulary:
        del sections["decoder"]["vocabulary"]  # type: ignore[attr-defined]
    table = {f"{name}_params": {"init_params": section} for name, section in sections.items()}
    state = foreign_names(model, "nemo")
    weights = {
        part: {
            name.removeprefix(f"{part}."): tensor for name, tensor in state.items() if name.startswith(part)
        }
        for part in ("encoder", "decoder")
    }
    members = {
        "module.yaml": yaml.safe_dump(
            {"header": {"nemo_core_version": "0.11"}, "init_params": table}
        ).encode(),
        "JasperEncoder.pt": saved(weights["encoder"]),
        "JasperDecoderForCTC.pt": saved(weights["decoder"]),
    }
    assert_equal(importers.read(archive(tmp_path / "m.nemo", members, "w:gz")), model)
    del members["JasperDecoderForCTC.pt"]
    with pytest.raises(AcousticError, match=r"lacks JasperDecoderForCTC\.pt"):
        importers.read(archive(tmp_path / "n.nemo", members))


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize(
    ("kind", "style"),
    [
        ("jasper", "dle jasper"),
        ("jasper dense", "dle jasper"),
        ("jasper plain", "dle old"),
        ("quartznet", "dle quartznet"),
        ("quartznet grouped", "dle quartznet"),
    ],
)
def test_deeplearning_examples_come_back_equal(tmp_path: Path, kind: str, style: str, averaged: bool) -> None:
    model = lived_in(MODELS[kind])
    last = Checkpoint(model.config, {name: tensor * 2 for name, tensor in model.state.items()})
    file = tmp_path / "model.pt"
    file.write_bytes(
        saved(
            {
                "epoch": 7,
                "step": 100,
                "best_wer": 3.5,
                "state_dict": foreign_names(last if averaged else model, style),
                "ema_state_dict": foreign_names(model, style) if averaged else None,
                "optimizer": {"state": {}, "param_groups": []},
            }
        )
    )
    imported = importers.read(file)
    assert_equal(imported, model)
    assert imported.config.features.log_floor == 1e-20
    assert imported.card["epoch"] == 7


def folded_folder(folder: Path, model: Checkpoint) -> Path:
    """A folded QuartzNet as its README describes it."""
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
        for unit in range(block.repeat):
            ours = f"blocks.{index}.units.{unit}"
            if block.separable:
                tensors[f"b{index}.r{unit}.dw"] = model.state[f"{ours}.depthwise.weight"][:, 0]
            tensors[f"b{index}.r{unit}.pw"] = model.state[f"{ours}.conv.weight"][:, :, 0]
            tensors[f"b{index}.r{unit}.bias"] = model.state[f"{ours}.conv.bias"]
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


def test_folded_folders_come_back_equal(tmp_path: Path) -> None:
    model = fold(lived_in(MODELS["quartznet"]))
    assert_equal(importers.read(folded_folder(tmp_path / "f", model)), model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.pop("layers"), "lacks something"),
        (lambda table: table.update(weights="../w.safetensors"), "outside the folder"),
        (lambda table: table["layers"][0].update(pad=3), "not the symmetric one"),
        (lambda table: table["layers"][1].update(repeat=4), "lacks something"),
        (lambda table: table["layers"][1].update(kernel=3, pad=1), "has the shape"),
    ],
)
def test_folded_folders_with_mistakes_are_refused(
    tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    folder = folded_folder(tmp_path / "f", fold(lived_in(MODELS["quartznet"])))
    table = json.loads((folder / "config.json").read_text())
    change(table)
    (folder / "config.json").write_text(json.dumps(table))
    with pytest.raises(AcousticError, match=message):
        importers.read(folder)


@pytest.mark.shared
@pytest.mark.skipif(not TEACHER.is_dir(), reason="needs the developers' ../shared material")
def test_the_real_folded_quartznet_is_read() -> None:
    model = importers.read(TEACHER)
    assert sum(tensor.numel() for tensor in model.state.values()) == 18_885_725
    assert model.config.receptive_field_frames == 8057


def link(kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo("innocent")
    info.type, info.linkname = kind, target
    return info


UNSAFE = {
    "absolute": tarfile.TarInfo("/etc/silica"),
    "upwards": tarfile.TarInfo("a/../../b"),
    "symbolic link": link(tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": link(tarfile.LNKTYPE, "model_config.yaml"),
    "device": link(tarfile.CHRTYPE, ""),
}


@pytest.mark.parametrize("what", UNSAFE)
def test_unsafe_archives_are_refused(tmp_path: Path, what: str) -> None:
    path = archive(tmp_path / "m.nemo", nemo_members(lived_in(MODELS["jasper"])))
    with tarfile.open(path, "a") as tar:
        tar.addfile(UNSAFE[what])
    with pytest.raises(AcousticError, match="refused"):
        importers.read(path)
    assert [file.name for file in tmp_path.iterdir()] == ["m.nemo"]


def test_oversize_archives_are_refused_unread(tmp_path: Path) -> None:
    """A small file that promises a large member: nothing of it is unpacked."""
    info = tarfile.TarInfo("model_weights.ckpt")
    info.size = untrusted.LARGEST_MEMBER_BYTES + 1
    path = tmp_path / "m.nemo"
    path.write_bytes(gzip.compress(info.tobuf() + bytes(10_240)))
    with pytest.raises(AcousticError, match="more than"):
        importers.read(path)


def test_archives_of_too_many_members_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.nemo", {f"m{index}": b"" for index in range(untrusted.MOST_MEMBERS + 1)})
    with pytest.raises(AcousticError, match="members"):
        importers.read(path)


class Trap:
    """Runs code when unpickled carelessly."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return Path("/nowhere").joinpath("x").write_text, ("caught",)  # type: ignore[return-value]


@pytest.mark.parametrize("where", ["nemo", "pt"])
def test_pickles_with_code_are_refused(tmp_path: Path, where: str) -> None:
    trap = saved({"state_dict": {"weight": Trap()}})
    if where == "nemo":
        members = nemo_members(lived_in(MODELS["jasper"])) | {"./model_weights.ckpt": trap}
        path = archive(tmp_path / "m.nemo", members)
    else:
        path = tmp_path / "m.pt"
        path.write_bytes(trap)
    with pytest.raises(AcousticError, match="refused"):
        importers.read(path)


def replaced(members: dict[str, bytes], **table: object) -> dict[str, bytes]:
    whole = yaml.safe_load(members["./model_config.yaml"]) | table
    return members | {"./model_config.yaml": yaml.safe_dump(whole).encode()}


def without_weight(members: dict[str, bytes], name: str, **new: object) -> dict[str, bytes]:
    state = torch.load(io.BytesIO(members["./model_weights.ckpt"]), weights_only=True)
    state.pop(name, None)
    return members | {"./model_weights.ckpt": saved(state | new)}


def rows(**change: object) -> dict[str, object]:
    encoder = nemo_table(MODELS["jasper"])["encoder"]
    assert isinstance(encoder, dict)
    encoder["jasper"][1].update(change)
    return encoder


MISTAKES: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "no weights": (lambda m: {"./model_config.yaml": m["./model_config.yaml"]}, "lacks model_weights"),
    "yaml": (lambda m: m | {"./model_config.yaml": b"a: [b"}, "no readable YAML"),
    "yaml text": (lambda m: m | {"./model_config.yaml": b"words"}, "no table"),
    "yaml code": (
        lambda m: m | {"./model_config.yaml": b"!!python/object/apply:os.system [x]"},
        "no readable",
    ),
    "no encoder": (lambda m: m | {"./model_config.yaml": b"a: 1"}, "lacks something"),
    "wrong kernel": (lambda m: replaced(m, encoder=rows(kernel=[9])), "disagree"),
    "strides": (lambda m: replaced(m, encoder=rows(stride=[2])), "strides in each"),
    "few blocks": (lambda m: replaced(m, encoder={"jasper": []}), "describes 0 blocks"),
    "activation": (lambda m: replaced(m, encoder=rows() | {"activation": "selu"}), "not relu"),
    "front end": (lambda m: replaced(m, preprocessor={"normalize": "all_features"}), "normalises"),
    "window": (lambda m: replaced(m, preprocessor={"window": "hamming"}), "another window"),
    "alphabet": (lambda m: replaced(m, decoder={"vocabulary": ["a"]}), "has the shape"),
    "lost decoder": (lambda m: without_weight(m, "decoder.decoder_layers.0.bias"), "no whole"),
    "lost norm": (lambda m: without_weight(m, "encoder.encoder.1.mconv.1.weight"), "missing"),
    "lost convolution": (
        lambda m: without_weight(m, "encoder.encoder.1.mconv.0.conv.weight"),
        "convolutions",
    ),
    "lost projection": (lambda m: without_weight(m, "encoder.encoder.1.res.0.0.conv.weight"), "Projection"),
    "unknown": (lambda m: without_weight(m, "", **{"decoder.lstm": torch.zeros(1)}), "no part of"),
    "no tensor": (lambda m: without_weight(m, "", **{"decoder.layers.0.bias": 3}), "no tensor"),
    "no state": (lambda m: m | {"./model_weights.ckpt": saved([1, 2])}, "no table of tensors"),
    "cut weights": (lambda m: m | {"./model_weights.ckpt": m["./model_weights.ckpt"][:999]}, "saved weights"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_archives_with_mistakes_are_refused_in_words(tmp_path: Path, what: str) -> None:
    change, message = MISTAKES[what]
    members = change(nemo_members(lived_in(MODELS["jasper"])))
    with pytest.raises(AcousticError, match=message):
        importers.read(archive(tmp_path / "m.nemo", members))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.pt", b"", "saved weights"),
        ("x.pt", b"words", "refused|saved weights"),
        ("x.pt", saved({"weights": 1}), "no `state_dict`"),
        ("x.nemo", b"words", "cannot be read as an archive"),
        ("x.wav", b"RIFF", "no layout known"),
        ("x.pt", pickle.dumps({"state_dict": np.zeros(3)}), "refused|saved weights"),
    ],
)
def test_files_of_nothing_known_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(AcousticError, match=message):
        importers.read(path)


def test_what_is_not_there() -> None:
    with pytest.raises(AcousticError, match="There is no"):
        importers.read(Path("nowhere.nemo"))


def test_our_own_checkpoints_can_be_imported_too(tmp_path: Path) -> None:
    from acoustic import checkpoint

    model = untrained(MODELS["quartznet"])
    path = checkpoint.save(tmp_path / "some.safetensors", model.config, model.state)
    assert_equal(importers.read(path), model)
