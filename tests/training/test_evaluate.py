"""Word errors on dev: each clip's sound is counted against its own text."""

from dataclasses import replace
from pathlib import Path

import torch

from acoustic.config import ModelConfig
from acoustic.network import build
from training.data.manifests import read_manifest
from training.run.distributed import World
from training.run.evaluate import Evaluation


def test_a_clip_that_cannot_be_read_counts_nothing(
    spoken: Path, small_network: ModelConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = build(small_network).eval()
    clips = read_manifest(spoken)
    broken = [replace(clips[0], audio=tmp_path / "gone.wav", text="seven words that nobody has ever said")]
    whole = Evaluation(clips[1:], small_network, World(), batch_duration_s=1.0)(model)
    score = Evaluation([*broken, *clips[1:]], small_network, World(), batch_duration_s=1.0)(model)
    assert score.words == whole.words
    assert score.characters == whole.characters
