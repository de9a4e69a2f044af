"""What ONNX Runtime computes from an exported file is what the network computes, for every kind of layer."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from acoustic.architectures import published
from acoustic.catalogue import untrained
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig, ModelConfig
from acoustic.errors import AcousticError
from acoustic.export import cache
from acoustic.export.onnx import export_onnx, onnx_bytes
from acoustic.quantization import calibration
from acoustic.quantization.calibration import calibrate
from acoustic.quantization.ranges import CARD_KEY, find_ranges, with_ranges
from acoustic.runtime.cpu import CpuBackend, open_session
from tests.acoustic.signals import enlivened, audio

FEATURES = published["tiny"].features
FIRST = BlockConfig(5, 16, stride=2, separable=True)


def model(*blocks: BlockConfig, **options: object) -> ModelConfig:
    """A small network around the blocks under test."""
    return ModelConfig("small", FEATURES, (FIRST, *blocks), **options)  # type: ignore[arg-type]


PLAIN = BlockConfig(5, 16, 2, residual="residual")
SEPARABLE = BlockConfig(7, 16, 2, separable=True, residual="residual")
NETWORKS = {
    "tiny": published["tiny"],
    "dense convolutions": model(PLAIN),
    "no bypass": model(replace(PLAIN, residual="none")),
    "identity": model(replace(SEPARABLE, residual="identity", look_ahead=(0, 3))),
    "dense residual": model(*[replace(PLAIN, residual="dense_residual")] * 3),
    "densenet": model(*[replace(PLAIN, residual="densenet")] * 2),
    "dense rnet": model(*[replace(PLAIN, residual="dense_rnet")] * 2),
    "group shuffle": model(replace(SEPARABLE, groups=4)),
    "layer norm": model(PLAIN, norm="layer"),
    "weight norm": model(PLAIN, norm="weight"),
    "clipped": model(PLAIN, activation="clipped_relu"),
    "leaky": model(PLAIN, activation="leaky_relu"),
    "glu": model(SEPARABLE, activation="glu"),
    "gau": model(PLAIN, activation="gau"),
    "dilated": model(BlockConfig(9, 24, dilation=2, separable=True)),
    "strided bypass": model(replace(SEPARABLE, stride=2), replace(PLAIN, residual="dense_residual")),
    "many outputs a step": model(BlockConfig(3, 24, stride=2, look_ahead=1), SEPARABLE, outputs_per_step=4),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test its own: what a test builds must not be there already."""
    monkeypatch.setenv("SILICA_HOME", str(tmp_path))
    return tmp_path


def lively(config: ModelConfig) -> Checkpoint:
    """Untrained weights whose norms are not the neutral ones they start with."""
    checkpoint = enlivened(untrained(config))
    generator = torch.Generator().manual_seed(2)
    for name, tensor in checkpoint.state.items():
        if name.endswith(("running_mean", "norm.bias")):
            tensor += torch.randn(tensor.shape, generator=generator) * 0.2
        if name.endswith(("running_var", "norm.weight")):
            tensor *= torch.rand(tensor.shape, generator=generator) + 0.5
    return checkpoint


def noise(frames: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 64, frames, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_computes_what_the_network_computes(name: str) -> None:
    checkpoint = lively(NETWORKS[name])
    session = open_session(onnx_bytes(checkpoint))
    network = checkpoint.network()
    for frames, batch in ((1, 1), (2, 1), (37, 3), (200, 2)):
        features = noise(frames, batch)
        with torch.inference_mode():
            expected = network(features)[0].numpy()
        (heard,) = session.run(None, {"features": features.numpy()})
        np.testing.assert_allclose(heard, expected, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_int8_stays_close_for_every_kind_of_layer(name: str) -> None:
    checkpoint = lively(NETWORKS[name])
    ranges = calibrate(checkpoint, [audio(12)], keep=False)
    exact = CpuBackend(checkpoint, "fp32").recording_log_probs(audio(5, seed=4))
    rounded = CpuBackend(with_ranges(checkpoint, ranges), "int8").recording_log_probs(audio(5, seed=4))
    apart = np.abs(np.exp(exact) - np.exp(rounded))
    assert apart.mean() < 0.01
    assert (exact.argmax(axis=1) == rounded.argmax(axis=1)).mean() > 0.85


def test_int8_weights_are_stored_in_eight_bits(tmp_path: Path) -> None:
    checkpoint = lively(NETWORKS["tiny"])
    ranges = calibrate(checkpoint, [audio(12)], keep=False)
    exported = onnx.load(export_onnx(checkpoint, tmp_path / "deep" / "folder" / "model.onnx", ranges))
    kinds = {constant.data_type for constant in exported.graph.initializer if len(constant.dims) == 4}
    assert onnx.TensorProto.INT8 in kinds
    shape = exported.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param for dim in (shape[0], shape[2])] == ["batch", "frames"]
    assert [path.name for path in (tmp_path / "deep" / "folder").iterdir()] == ["model.onnx"]


def test_int8_without_ranges_says_what_to_do() -> None:
    with pytest.raises(AcousticError, match="calibrate"):
        CpuBackend(untrained(published["tiny"]), "int8")


def test_calibration_is_remembered_in_the_cache() -> None:
    checkpoint = untrained(published["tiny"])
    assert find_ranges(checkpoint) is None
    ranges = calibrate(checkpoint, [audio(12)])
    assert find_ranges(checkpoint) == ranges
    assert CpuBackend(checkpoint).precision == "int8"
    assert CpuBackend(checkpoint, "fp32").precision == "fp32"
    # Other weights, other ranges: nothing known about those.
    assert find_ranges(untrained(published["tiny"], seed=9)) is None


def test_what_was_measured_here_counts_for_more_than_the_card() -> None:
    checkpoint = untrained(published["tiny"])
    carded = with_ranges(checkpoint, calibrate(checkpoint, [audio(12)], keep=False))
    before = find_ranges(carded)
    after = calibrate(carded, [audio(12) * 0.01])
    assert find_ranges(carded) == after != before


def test_int8_keeps_the_offset_of_a_channel_whose_weights_are_nearly_nothing() -> None:
    checkpoint = untrained(published["tiny"])
    name = "blocks.1.units.0.norm"
    assert f"{name}.weight" in checkpoint.state
    checkpoint.state[f"{name}.weight"] = torch.full_like(checkpoint.state[f"{name}.weight"], 1e-7)
    checkpoint.state[f"{name}.bias"] = torch.ones_like(checkpoint.state[f"{name}.bias"])
    ranges = calibrate(checkpoint, [audio(12)], keep=False)
    int8 = CpuBackend(with_ranges(checkpoint, ranges), "int8").recording_log_probs(audio(2))
    np.testing.assert_allclose(np.exp(int8), np.exp(CpuBackend(checkpoint, "fp32").recording_log_probs(audio(2))), atol=0.1)


def test_a_few_far_numbers_do_not_coarsen_the_steps_of_all_others() -> None:
    checkpoint = untrained(published["tiny"])
    network = checkpoint.network().eval()
    features = noise(600, 1)[0]
    features[:, 300] *= 200.0
    ranges = calibration._measure(checkpoint, [features])
    low, high = float(features.min()), float(features.max())
    assert ranges["features"][1] - ranges["features"][0] < 0.5 * (high - low)
    everything = {site: (low, high) if site == "features" else pair for site, pair in ranges.items()}
    with torch.inference_mode():
        exact = network(features[None])[0].numpy()

    def apart(chosen: dict[str, tuple[float, float]]) -> float:
        session = open_session(onnx_bytes(checkpoint, chosen))
        (heard,) = session.run(None, {"features": features[None].numpy()})
        return float((np.exp(exact) * (exact - heard)).sum(-1).mean())

    assert apart(ranges) < apart(everything)


def test_too_little_speech_is_no_calibration() -> None:
    with pytest.raises(AcousticError, match="at least 10 s"):
        calibrate(untrained(published["tiny"]), [audio(5)])


@pytest.mark.parametrize(
    "stored", [[1, 2], {"features": [1]}, {"features": ["a", 2]}, {"features": [0, float("nan")]}]
)
def test_damaged_ranges_are_refused(stored: object) -> None:
    tiny = untrained(published["tiny"])
    with pytest.raises(AcousticError, match="Calibrate again"):
        CpuBackend(replace(tiny, card={CARD_KEY: stored}), "int8")


def test_ranges_of_another_model_are_refused() -> None:
    ranges = calibrate(untrained(published["tiny"]), [audio(12)], keep=False)
    other = with_ranges(untrained(NETWORKS["dense residual"]), ranges)
    with pytest.raises(AcousticError, match="another model"):
        CpuBackend(other, "int8")


def test_a_built_file_is_kept_and_used_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = untrained(published["tiny"])
    first = CpuBackend(checkpoint, "fp32").recording_log_probs(audio(1))
    (kept,) = (home / "cache").glob("*.onnx")
    monkeypatch.setattr(cache, "export_onnx", lambda *_, **__: pytest.fail("built a second time"))
    np.testing.assert_array_equal(CpuBackend(checkpoint, "fp32").recording_log_probs(audio(1)), first)
    assert kept.exists()


def built_often(path: Path) -> set[bytes]:
    """What one process finds in the file that it and others write again and again."""
    checkpoint = untrained(published["tiny"])
    return {export_onnx(checkpoint, path).read_bytes() for _ in range(25)}


def test_processes_that_build_the_same_file_at_once_all_find_it_whole(tmp_path: Path) -> None:
    whole = onnx_bytes(untrained(published["tiny"]))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(built_often, [tmp_path / "model.onnx"] * 2):
            assert found == {whole}
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_cache_has_a_limit(home: Path) -> None:
    for seed in range(cache.KEPT_FILES + 3):
        cache.onnx_content(untrained(published["tiny"], seed=seed))
    assert len(list((home / "cache").glob("*.onnx"))) == cache.KEPT_FILES


def test_without_a_place_for_the_cache_the_file_is_built_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_text("a file where the folder should be")
    monkeypatch.setenv("SILICA_HOME", str(tmp_path / "occupied"))
    assert len(CpuBackend(untrained(published["tiny"]), "fp32").recording_log_probs(audio(1))) == 50
