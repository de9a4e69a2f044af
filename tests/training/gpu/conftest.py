"""Clips, noise, a teacher, a student and a recipe, and the folder that `silica pack` makes of them."""

import ctypes.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from acoustic import checkpoint
from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.constants import SAMPLE_RATE
from acoustic.network import build
from training.data.manifests import Clip, write_manifest

RECIPE = """
title = "a small packed run"
[model]
start = "{folder}/mini.safetensors"
[data]
train = ["recorded", "spoken-1", "recorded"]
noise = "noise"
max_duration_s = 3.5
batch_duration_s = 6.0
[blockwise]
teacher = "{folder}/teacher.safetensors"
teacher_blocks = [1, 2]
student_blocks = [0, 1]
delay_outputs = [1, 3]
ctc_weight = 0.1
[augment]
speed = 0.8
silence = 0.2
noise = 0.3
reverb = 0.2
[optimizer]
name = "muon"
learning_rate = 0.0035
[schedule]
steps = 3
decay = "linear"
warmup_steps = 1
[run]
ema_decay = 0.998
log_every = 1
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Packed audio needs libopus."""
    if ctypes.util.find_library("opus") is None:
        reason = "audio is packed by libopus: install Debian's libopus0"
        for item in items:
            if "packed" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=reason))


def voice(seconds: float, pitch: float) -> np.ndarray:
    """A voice without words: harmonics that rise and fall."""
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.2 * np.sin(3 * time))) / SAMPLE_RATE
    audio = sum(np.sin(number * phase) / number for number in range(1, 20))
    return (0.1 * audio * (0.6 + 0.4 * np.sin(9 * time))).astype(np.float32)


MAIN = "import sys; from service.commands import main; sys.exit(main(sys.argv[1:]))"


def silica(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own: its workers are forked."""
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def started(*arguments: Any) -> subprocess.Popen[str]:
    """A command that is still running."""
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, teacher: Checkpoint, student: ModelConfig) -> Path:
    """Clips, of which one is broken, synthetic ones, noise, a teacher, a student and a recipe."""
    folder = tmp_path_factory.mktemp("data")
    checkpoint.save(folder / "teacher.safetensors", teacher.config, teacher.state)
    checkpoint.save(folder / "mini.safetensors", student, build(student).state_dict(), {"title": "mini"})
    (folder / "small.toml").write_text(RECIPE.format(folder=folder))
    for name, count in (("recorded", 8), ("spoken-1", 4)):
        (folder / name).mkdir()
        clips = []
        for number in range(count):
            path, seconds = folder / name / f"{number}.wav", 1.0 + 0.3 * number
            soundfile.write(path, voice(seconds, 100 + 20 * number), SAMPLE_RATE, subtype="PCM_16")
            clips.append(Clip(path, seconds, "mm hm" if number else None))
        write_manifest(folder / name / "manifest.jsonl", clips)
    (folder / "recorded" / "3.wav").write_bytes(b"no audio at all")
    (folder / "noise").mkdir()
    lines = []
    for name, kind in (("hiss", "noise"), ("hall", "rir")):
        noise = np.random.default_rng(1).normal(0, 0.1, SAMPLE_RATE) * np.exp(
            -np.arange(SAMPLE_RATE) * (3e-4 if kind == "rir" else 0)
        )
        soundfile.write(folder / "noise" / f"{name}.wav", noise, SAMPLE_RATE)
        lines.append(json.dumps({"audio": f"{name}.wav", "kind": kind, "split": "train"}))
    (folder / "noise" / "manifest.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def packed(data: Path) -> SimpleNamespace:
    """The packed folder, in small parts, and what the command printed."""
    out = data / "packed"
    done = silica(
        "pack", data / "small.toml", "--data", data, "--out", out, "--synthetic-share", 0.5, "--kilobits", 24,
        "--part-megabytes", 0.015, "--first-megabytes", 0.01,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(folder=out, printed=done.stderr)
