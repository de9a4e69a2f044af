"""Evaluation on the development set."""

from dataclasses import replace
from pathlib import Path

import torch

from acoustic.config import ModelConfig
from acoustic.network import build
from training.data.manifests import read_manifest
from training.run.distributed import World
from training.run.evaluate import Evaluation


def test_an_unreadable_clip_is_not_counted(spoken: Path, small_network: ModelConfig, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build(small_network).eval()
    clips = read_manifest(spoken)
    broken = [replace(clips[0], audio=tmp_path / "gone.wav", text="seven words that nobody has ever said")]
    expected = Evaluation(clips[1:], small_network, World(), batch_duration_s=1.0)(model)
    score = Evaluation([*broken, *clips[1:]], small_network, World(), batch_duration_s=1.0)(model)
    assert score.words == expected.words
    assert score.characters == expected.characters
