"""Export: files are reloaded and compared with the trained network; training can continue from them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from acoustic import checkpoint
from acoustic.config import ModelConfig
from acoustic.network import build
from lm.search.settings import SearchSettings
from service.scheduling.device import alphabet_and_search
from training.data.manifests import Clip, read_manifest
from training.errors import TrainingError
from training.export import export_model
from training.run.finetune import start_from


@pytest.fixture
def trained(small_network: ModelConfig, tmp_path: Path) -> Path:
    """A network with batch norm statistics."""
    torch.manual_seed(0)
    network = build(small_network).train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.randn(4, small_network.features.mels, 200), torch.tensor([200, 180, 150, 90]))
    return checkpoint.save(tmp_path / "best.safetensors", small_network, network.state_dict())


@pytest.fixture
def calibration_clips(spoken: Path) -> list[Clip]:
    """Enough speech for INT8 calibration."""
    return read_manifest(spoken) * 5


@pytest.mark.parametrize(("keep_batchnorm", "weights"), [(False, "fp16"), (True, "fp16"), (True, "int8")])
def test_an_exported_model_agrees_with_the_trained_network(
    trained: Path,
    calibration_clips: list[Clip],
    tmp_path: Path,
    keep_batchnorm: bool,
    weights: checkpoint.Dtype,
) -> None:
    file, onnx = export_model(
        trained, tmp_path / "out", calibration_clips, keep_batchnorm=keep_batchnorm, weights=weights
    )
    assert (file.form, onnx.form) == ("fp16" if weights == "fp16" else "int8 weights", "int8")
    assert file.max_difference < (0.01 if weights == "fp16" else 0.05)
    assert file.same_best_symbol > (0.99 if weights == "fp16" else 0.97)
    assert onnx.same_best_symbol > 0.9
    assert all(Path(result.file).stat().st_size == result.bytes for result in (file, onnx))
    served = checkpoint.load(Path(file.file))
    assert served.config.norm == ("batch" if keep_batchnorm else "folded")


def test_search_settings_are_stored_in_the_card(
    trained: Path, calibration_clips: list[Clip], tmp_path: Path
) -> None:
    search = {"lm_weight": 0.6, "width": 128.0}
    (file,) = export_model(trained, tmp_path / "out", calibration_clips[:1], int8=False, search=search)
    assert checkpoint.load(Path(file.file)).card["search"] == search
    assert alphabet_and_search(file.file)[1] == SearchSettings(lm_weight=0.6, width=128)


def test_blank_bias_is_added_to_the_blank_logit(
    trained: Path, calibration_clips: list[Clip], tmp_path: Path
) -> None:
    plain, biased = (
        checkpoint.load(
            Path(
                export_model(trained, tmp_path / name, calibration_clips[:1], int8=False, blank_bias=nats)[
                    0
                ].file
            )
        )
        for name, nats in (("plain", 0.0), ("biased", -0.5))
    )
    features = torch.randn(1, 64, 100)
    with torch.no_grad():
        before, after = (file.network().eval().logits(features) for file in (plain, biased))
    expected = torch.zeros(plain.config.classes)
    expected[plain.config.blank] = -0.5
    assert torch.allclose(after - before, expected.expand_as(before), atol=1e-2)


def test_training_continues_from_an_export_that_keeps_batch_norm(
    trained: Path, calibration_clips: list[Clip], tmp_path: Path
) -> None:
    (file,) = export_model(trained, tmp_path / "out", calibration_clips[:1], int8=False, keep_batchnorm=True)
    network, _ = start_from(checkpoint.load(Path(file.file)))
    before = checkpoint.load(trained).state
    for name, value in network.state_dict().items():
        assert torch.allclose(value.float(), before[name].float(), atol=2e-3, rtol=2e-3), name


def test_too_little_calibration_speech_and_missing_runs_are_reported(
    trained: Path, calibration_clips: list[Clip], tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="too little for INT8 calibration"):
        export_model(trained, tmp_path / "out", calibration_clips[:1])
    with pytest.raises(TrainingError, match="expected a run folder or a checkpoint file"):
        export_model(tmp_path / "nowhere", tmp_path / "out", calibration_clips)
    with pytest.raises(TrainingError, match="expected a manifest"):
        export_model(trained, tmp_path / "out", [])


def test_averaging_checkpoints_uses_the_given_shares(small_network: ModelConfig, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "average_checkpoints.py"
    files = []
    for value in (1.0, 2.0, 6.0):
        state = {
            name: torch.full_like(weight, value) for name, weight in build(small_network).state_dict().items()
        }
        files.append(
            checkpoint.save(tmp_path / f"{value}.safetensors", small_network, state, {"title": str(value)})
        )

    def mean(*more: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            str(script),
            *map(str, files),
            "--out",
            str(tmp_path / "mean.safetensors"),
            *more,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for shares, expected in (((), 3.0), (("--shares", "2", "1", "1"), 2.5)):
        assert mean(*shares).returncode == 0
        made = checkpoint.load(tmp_path / "mean.safetensors")
        weights = [weight for weight in made.state.values() if weight.is_floating_point()]
        torch.testing.assert_close(weights[0], torch.full_like(weights[0], expected))
        assert made.card["title"] == "6.0"
    refused = mean("--shares", "1")
    assert refused.returncode == 2 and "--shares needs 3 numbers" in refused.stderr
