"""A sitting on a lent GPU, on a CPU and one operation at a time: packed, carried in parts, trained, joined again."""

import ctypes.util
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from acoustic import checkpoint
from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.constants import SAMPLE_RATE
from acoustic.network import build
from training.augment.config import NO_AUGMENT
from training.data.manifests import Clip, write_manifest
from training.errors import TrainingError

SCRIPTS = Path(__file__).parents[2] / "scripts"
CPU = torch.device("cpu")
RECIPE = """
title = "a small sitting"
[model]
start = "{folder}/mini.safetensors"
[data]
train = ["hummed", "spoken-1", "hummed"]
noise = "noise"
max_duration_s = 3.5
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
[schedule]
steps = 1
[run]
ema_decay = 0.998
"""

pytestmark = pytest.mark.skipif(
    ctypes.util.find_library("opus") is None, reason="sound is packed by libopus: install Debian's libopus0"
)


def hum(seconds: float, pitch: float) -> np.ndarray:
    """A voice that says nothing: harmonics that rise and fall."""
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.2 * np.sin(3 * time))) / SAMPLE_RATE
    sound = sum(np.sin(number * phase) / number for number in range(1, 20))
    return (0.1 * sound * (0.6 + 0.4 * np.sin(9 * time))).astype(np.float32)


@pytest.fixture(scope="module")
def parts() -> Iterator[SimpleNamespace]:
    """The scripts' own modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))  # as `python scripts/gpu_sitting.py` has it
        names = ("sitting.opus", "sitting.parts", "sitting.sound", "sitting.models", "gpu_sitting")
        yield SimpleNamespace(**{name.split(".")[-1]: importlib.import_module(name) for name in names})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, teacher: Checkpoint, student: ModelConfig) -> Path:
    """Clips, of which one is broken, a machine's, noise, a teacher, a student and a recipe."""
    folder = tmp_path_factory.mktemp("data")
    checkpoint.save(folder / "teacher.safetensors", teacher.config, teacher.state)
    checkpoint.save(folder / "mini.safetensors", student, build(student).state_dict(), {"title": "mini"})
    (folder / "small.toml").write_text(RECIPE.format(folder=folder))
    for name, count in (("hummed", 8), ("spoken-1", 4)):
        (folder / name).mkdir()
        clips = []
        for number in range(count):
            path, seconds = folder / name / f"{number}.wav", 1.0 + 0.3 * number
            soundfile.write(path, hum(seconds, 100 + 20 * number), SAMPLE_RATE, subtype="PCM_16")
            clips.append(Clip(path, seconds, "mm hm" if number else None))
        write_manifest(folder / name / "manifest.jsonl", clips)
    (folder / "hummed" / "3.wav").write_bytes(b"no sound at all")
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


@pytest.fixture(scope="module")
def packed(data: Path) -> tuple[Path, str]:
    """The folder of a sitting in small parts, and what was said meanwhile."""
    out = data / "packed"
    done = run(
        "pack_sitting", data, out, "--recipe", data / "small.toml", "--share-spoken", 0.5, "--kilobits", 24,
        "--part-megabytes", 0.015, "--first-megabytes", 0.01,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, done.stderr


def run(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / f"{script}.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_packed_comes_back_and_what_cannot_be_is_named(
    packed: tuple[Path, str], parts: SimpleNamespace, teacher: Checkpoint
) -> None:
    folder, told = packed
    assert "left out: " in told and "hummed/3.wav" in told and "1 left out that cannot be read" in told
    files = parts.parts.part_files(folder)
    sizes = [file.stat().st_size for file in files]
    assert len(files) > 1 and sizes[0] < 10_500 and max(sizes) < 15_500
    clips = [clip for file in files for clip in parts.parts.read_part(file).clips]
    weights = [clip.weight for clip in clips]
    assert weights.count(2.0) == 6 and weights.count(1.0) == 2, "half of what a machine says, once each"
    assert {clip.text for clip in clips} == {"mm hm"} and "left out: 3 clips, no words known" in told
    models = parts.models.read_models(folder / "models.pt")
    first = models.teacher.state["blocks.1.units.0.conv.weight"]
    assert torch.equal(first, first.half().float()) and first.abs().sum() > 0
    assert not models.teacher.state["blocks.3.units.0.conv.weight"].any(), "behind what is learnt"
    assert models.recipe.blockwise.teacher_blocks == (1, 2) and len(models.scales) == len(models.shares) == 2
    assert models.responses is not None and models.responses.shape == (1, SAMPLE_RATE)


def test_sound_keeps_its_place_in_packets(parts: SimpleNamespace) -> None:
    encoder, sound = parts.opus.Encoder(32_000), (hum(1.7, 150.0) * 32767).astype(np.int16)
    for _ in range(2):  # every clip begins anew
        packets = encoder.encode(sound)
        heard = parts.opus.Decoder().decode(packets, len(sound), encoder.delay_samples)
        assert len(heard) == len(sound)
        alike = [np.corrcoef(heard[2000 + by : -100 + by], sound[2000:-100])[0, 1] for by in range(-45, 46)]
        assert max(alike) > 0.8 and abs(int(np.argmax(alike)) - 45) <= 8, "half a millisecond"


def test_a_part_counts_once_it_is_whole(
    packed: tuple[Path, str],
    parts: SimpleNamespace,
    student: ModelConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, *_ = (file.read_bytes() for file in parts.parts.part_files(packed[0]))
    shapes = parts.sound.batch_shapes(student, NO_AUGMENT, 7.0, 3.5)
    assert [shape.rows for shape in shapes] == [2, 2] and shapes[0].samples == 3 * SAMPLE_RATE
    pool = SimpleNamespace(imap=map)
    sound = parts.sound.Sound(tmp_path, shapes, student.alphabet, CPU, pool=pool, hours=0.01)
    (tmp_path / "part-00.zip").write_bytes(first)
    (tmp_path / "part-01.zip").write_bytes(second[: len(second) // 2])
    assert sound.take() == 1 and sound.take() == 0
    assert capsys.readouterr().err.count("part-01.zip is not whole") == 1
    clips, hours = len(sound.counts), sound.hours
    drawn = sound.draw(0)
    assert drawn.sound.shape == (2, shapes[drawn.shape].samples) and drawn.sound.abs().max() > 0.05
    (tmp_path / "part-01.zip").write_bytes(second)
    assert sound.take() == 1 and len(sound.counts) > clips and sound.hours > hours
    rows = {row for step in range(60) for row in sound.draw(step).lengths.tolist()}
    assert rows == set(sound.counts), "old and new ones are drawn"
    again = sound.draw(0)
    assert torch.equal(again.sound, sound.draw(0).sound)


def test_what_finds_no_room_is_said(
    packed: tuple[Path, str], parts: SimpleNamespace, student: ModelConfig
) -> None:
    shapes, told = parts.sound.batch_shapes(student, NO_AUGMENT, 7.0, 3.5), []
    sound = parts.sound.Sound(
        packed[0],
        shapes,
        student.alphabet,
        CPU,
        pool=SimpleNamespace(imap=map),
        hours=0.001,
        tell=told.append,
    )
    sound.take()
    assert any("found no room" in line for line in told) and 0 < sound.hours <= 0.001


def test_a_sitting_trains_and_goes_on(packed: tuple[Path, str], data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = [
        out, "--packed", packed[0], "--start", data / "mini.safetensors", "--steps", 3, "--seconds", 6,
        "--hours", 0.05, "--warm", 1, "--device", "cpu", "--processes", 1, "--dtype", "fp16", "--pieces", 2,
        "--set", "augment.noise=0.5",
    ]  # fmt: skip
    done = run("gpu_sitting", *line)
    assert done.returncode == 0, done.stderr
    assert "step 3 ·" in done.stdout and "noise=0.5" in done.stdout and "3 steps" in done.stdout
    start, mean = checkpoint.load(data / "mini.safetensors"), checkpoint.load(out / "mean.safetensors")
    assert mean.config == start.config and mean.card["sitting"]["steps"] == 3
    moved = [name for name, value in mean.state.items() if not torch.equal(value, start.state[name].half())]
    assert "blocks.1.units.0.conv.weight" in moved and all(
        torch.isfinite(value).all() for value in mean.state.values()
    )
    last = checkpoint.load(out / "last.safetensors").state
    assert not torch.equal(last["output.weight"], mean.state["output.weight"])
    pieces = sorted(out.glob("mean-3.?of2"))
    assert len(pieces) == 2
    assert b"".join(piece.read_bytes() for piece in pieces) == (out / "mean.safetensors").read_bytes()

    done = run("gpu_sitting", *line, "--resume", "--eager")
    assert done.returncode == 0, done.stderr
    assert checkpoint.load(out / "mean.safetensors").card["sitting"]["steps"] == 6
    assert [piece.name for piece in sorted(out.glob("mean-*"))] == ["mean-6.0of2", "mean-6.1of2"]


def test_what_is_missing_is_named(parts: SimpleNamespace, student: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"pack_sitting\.py writes it"):
        parts.models.read_models(tmp_path / "models.pt")
    (tmp_path / "models.pt").write_bytes(b"PK half of it")
    with pytest.raises(TrainingError, match="is not whole"):
        parts.models.read_models(tmp_path / "models.pt")
    shapes, pool = parts.sound.batch_shapes(student, NO_AUGMENT, 7.0, 3.5), SimpleNamespace(imap=map)
    sound = parts.sound.Sound(tmp_path, shapes, student.alphabet, CPU, pool=pool, hours=0.01)
    with pytest.raises(TrainingError, match="No part of a sitting came into"):
        sound.wait(0.0)
    (tmp_path / "mean.safetensors").touch()
    asked = SimpleNamespace(out=tmp_path, resume=False, start="x")
    with pytest.raises(TrainingError, match="--resume goes on from it"):
        parts.gpu_sitting.starting(asked)
    with pytest.raises(TrainingError, match="says no end"):
        parts.gpu_sitting.End(0.0, tmp_path / "until").now()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.opus.ctypes.util, "find_library", lambda name: None)
        patch.setattr(parts.opus, "CARRIED", "libnothing.so")
        parts.opus.library.cache_clear()
        with pytest.raises(TrainingError, match="the package libopus0"):
            parts.opus.library(tmp_path)
    parts.opus.library.cache_clear()
