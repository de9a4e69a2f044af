"""Importers read back Silica networks that were written in other projects' formats."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from acoustic import importers
from acoustic.catalogue import untrained
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.network.folding import fold
from tests.acoustic.foreign_checkpoints import (
    MODELS,
    archive,
    assert_equal,
    folded_folder,
    foreign_names,
    nemo_members,
    nemo_table,
    pickled,
    random_checkpoint,
)

SHARED_QUARTZNET = Path(__file__).parents[3] / "shared" / "models" / "quartznet15x5-en"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("kind", MODELS)
def test_nemo_archives(tmp_path: Path, kind: str, mode: str) -> None:
    model = random_checkpoint(MODELS[kind])
    imported = importers.read(archive(tmp_path / "model.nemo", nemo_members(model), mode))
    assert_equal(imported, model)
    assert imported.config.features.normalize == "utterance"
    assert imported.config.features.log_floor == 2.0**-24
    assert imported.card["imported_from"] == "NVIDIA NeMo archive"


def test_nemo_alphabets_and_nested_settings(tmp_path: Path) -> None:
    model = random_checkpoint(replace(MODELS["jasper"], alphabet=" abcäöüß"))
    table = nemo_table(model.config)
    table = {name: {"cls": "x", "params": section} for name, section in table.items()}
    members = nemo_members(model) | {"./model_config.yaml": yaml.safe_dump({"model": table}).encode()}
    imported = importers.read(archive(tmp_path / "m.nemo", members))
    assert imported.config.alphabet == " abcäöüß"
    assert_equal(imported, model)


@pytest.mark.parametrize("vocabulary", [True, False])
def test_nemo_archives_before_1_0(tmp_path: Path, vocabulary: bool) -> None:
    """Two files of weights, and nested settings."""
    model = random_checkpoint(MODELS["quartznet"])
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
        "JasperEncoder.pt": pickled(weights["encoder"]),
        "JasperDecoderForCTC.pt": pickled(weights["decoder"]),
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
def test_deeplearning_examples(tmp_path: Path, kind: str, style: str, averaged: bool) -> None:
    model = random_checkpoint(MODELS[kind])
    last = Checkpoint(model.config, {name: tensor * 2 for name, tensor in model.state.items()})
    file = tmp_path / "model.pt"
    file.write_bytes(
        pickled(
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


def test_folded_quartznet(tmp_path: Path) -> None:
    model = fold(random_checkpoint(MODELS["quartznet"]))
    assert_equal(importers.read(folded_folder(tmp_path / "f", model)), model)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED_QUARTZNET.is_dir(), reason="needs the developers' ../shared material")
def test_the_published_folded_quartznet() -> None:
    model = importers.read(SHARED_QUARTZNET)
    assert sum(tensor.numel() for tensor in model.state.values()) == 18_885_725
    assert model.config.receptive_field_frames == 8057


def test_silica_checkpoints(tmp_path: Path) -> None:
    from acoustic import checkpoint

    model = untrained(MODELS["quartznet"])
    path = checkpoint.save(tmp_path / "some.safetensors", model.config, model.state)
    assert_equal(importers.read(path), model)
