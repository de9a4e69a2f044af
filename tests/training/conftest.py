"""Ten short sentences synthesized by flite, and a network small enough to overfit them in half a minute."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acoustic.architectures import ARCHITECTURES, FIXED
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig, ModelConfig
from acoustic.constants import SAMPLE_RATE
from acoustic.network import build
from training.data.audio import read_clip
from training.data.manifests import Clip, write_manifest

SENTENCES = (
    "the sea is calm",
    "open the door",
    "seven green bottles",
    "call me tomorrow",
    "what a fine day",
    "turn the light off",
    "paper and ink",
    "he left in june",
    "a quick brown fox",
    "nobody knows why",
)


@pytest.fixture(autouse=True)
def limit_to_one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ten clips and their manifest."""
    if shutil.which("flite") is None:
        pytest.skip("this test synthesizes speech with flite: install the Debian package `flite`")
    folder = tmp_path_factory.mktemp("spoken")
    clips = []
    for number, text in enumerate(SENTENCES):
        path = folder / f"{number}.wav"
        subprocess.run(
            ["flite", "-voice", "slt", "-t", text, "-o", str(path)], check=True, capture_output=True
        )
        clips.append(Clip(path, len(read_clip(path)) / SAMPLE_RATE, text, speaker="flite", corpus="flite"))
    write_manifest(folder / "manifest.jsonl", clips)
    return folder


@pytest.fixture(scope="session")
def small_network() -> ModelConfig:
    """A QuartzNet with a hundred thousand parameters."""
    blocks = (
        BlockConfig(11, 96, stride=2, separable=True),
        BlockConfig(13, 96, 2, separable=True, residual="residual"),
        BlockConfig(15, 96, 2, separable=True, residual="residual"),
        BlockConfig(1, 128),
    )
    return ModelConfig("small", ARCHITECTURES["tiny"].features, blocks)


@pytest.fixture(scope="session")
def teacher(small_network: ModelConfig) -> Checkpoint:
    """A teacher with random weights, for blocks 1 and 2."""
    torch.manual_seed(5)
    return Checkpoint(small_network, build(small_network).eval().state_dict())


@pytest.fixture(scope="session")
def student() -> ModelConfig:
    """A student whose blocks 0 and 1 have the channels and frame rate of the teacher's blocks 1 and 2."""
    blocks = (
        BlockConfig(7, 96, 2, stride=2, separable=True, look_ahead=1),
        BlockConfig(7, 96, 2, separable=True, residual="residual", look_ahead=1),
        BlockConfig(1, 64),
    )
    return ModelConfig("mini", replace(FIXED, edge="zero"), blocks)
