"""scripts/speak_text.py: the selection of sentences and the perturbation of the voice."""

import importlib.util
import lzma
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from training.data.manifests import Clip, read_manifest, write_manifest

SCRIPT = Path(__file__).parents[2] / "scripts" / "speak_text.py"
KNOWN = "the cat sat on the mat and then the dog sat on it too"
TESTED = "a heron stalked along the muddy bank of the quiet estuary"
NEW = "gardeners pruned seventeen overgrown quince trees"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("speak_text", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))  # as `python scripts/speak_text.py` has it
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Training and test clips with transcripts, and texts that share sentences with both."""
    speech = tmp_path / "shared" / "speech"
    for folder, text in (("train-crowd", KNOWN), ("dev", TESTED)):
        (speech / folder).mkdir(parents=True)
        write_manifest(speech / folder / "manifest.jsonl", [Clip(Path("a.wav"), 3.0, text)])
    (tmp_path / "shared" / "text").mkdir()
    lines = [KNOWN, KNOWN, f"{KNOWN}.", f"Indeed {TESTED}.", "In 1999 it was sold for five pounds."]
    lines += [f"{NEW} {day}!" for day in ("today", "daily", "now")]
    for name, texts in (
        ("general_tatoeba", lines),
        ("general_wikisplit", ["This sentence is under a share-alike licence."]),
    ):
        with lzma.open(tmp_path / "shared" / "text" / f"{name}.txt.xz", "wt") as file:
            file.write("\n".join(texts))
    return tmp_path


def test_sentences_with_new_words_come_first_and_test_transcripts_are_excluded(script, data: Path) -> None:
    folder, rng = data / "shared" / "text", random.Random(1)
    texts, recorded = script.select_texts(data, folder, rng)
    assert recorded == Counter(KNOWN.split())
    assert not any("estuary" in text or "1999" in text or "share-alike" in text for text in texts)
    order = list(script.by_new_words(texts, recorded, rng))
    assert sorted(order) == sorted(texts)
    assert order[0].startswith(NEW) and KNOWN in order[-1]
    order = list(script.interleaved(texts, script.select_texts(data, folder, rng)[1], rng))
    assert (
        order[0].startswith(NEW)
        and sorted(order[::2]) == sorted(texts)
        and sorted(order[1::2]) == sorted(texts)
    )


def test_warping_moves_formants_and_scaling_moves_the_pitch(script) -> None:
    peak = np.zeros((601, 3), np.float32)
    peak[100] = 1.0
    for seed in range(20):
        low, high = (script._frequency_warp(601, pitch, np.random.default_rng(seed)) for pitch in (0.5, 1.2))
        assert (np.diff(low) >= 0).all() and low[0] == 0 and low[-1] <= 600
        peaks = [int(script._warped(peak, warp)[:, 0].argmax()) for warp in (low, high)]
        assert peaks[0] < peaks[1]  # the lower voice has the longer vocal tract
    contour = np.array([0.0, 180.0, 220.0, 200.0, 12.0], np.float32)
    scaled = script._scaled_pitch(contour, 0.5, 0.5)
    assert scaled[0] == 0 and scaled[-1] == 12
    mean = 0.5 * np.exp(np.log([180, 220, 200]).mean())
    assert scaled[1:4] == pytest.approx(mean * (np.array([180, 220, 200]) * 0.5 / mean) ** 0.5, rel=1e-5)
    assert script._scaled_pitch(np.full(3, 12.0, np.float32), 0.5, 1.0).tolist() == [12.0] * 3


def test_synthesis_is_reproducible(data: Path) -> None:
    pytest.importorskip("hibari", reason="the synthesizer is not installed: pip install hibari-tts==0.2.1")
    first = run(data, "first", "--hours", "0.002")
    assert first.returncode == 0, first.stderr
    clips = read_manifest(data / "first")
    assert clips[0].text.startswith(NEW) and 7.2 <= sum(clip.duration_s for clip in clips) < 20
    for clip in clips:
        assert clip.audio.stat().st_size == pytest.approx(32_000 * clip.duration_s, rel=0.01)
    again = run(data, "again", "--hours", "0.002")
    assert again.returncode == 0, again.stderr
    for one, other in zip(clips, read_manifest(data / "again"), strict=True):
        assert one.text == other.text and one.audio.read_bytes() == other.audio.read_bytes()


def test_a_large_text_is_sampled(script, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = data / "library"
    library.mkdir()
    (library / "books_whole.txt").write_text(
        "".join(f"{NEW} {name}.\n" for name in ("here", "there", "nowhere"))
    )
    assert len(script.select_texts(data, library, random.Random(1))[0]) == 3
    monkeypatch.setattr(script, "MAX_SENTENCES", 2)
    samples = {tuple(script.select_texts(data, library, random.Random(seed))[0]) for seed in range(9)}
    assert len(samples) > 1 and all(len(texts) == 2 for texts in samples)


def test_missing_inputs_are_errors(data: Path) -> None:
    result = run(data / "shared", "out")
    assert result.returncode == 2 and "gather_speech.py" in result.stderr
    if importlib.util.find_spec("hibari") is None:
        result = run(data, "out")
        assert result.returncode == 2 and "pip install hibari-tts" in result.stderr
    else:
        result = run(data, "out", "--texts", str(data))
        assert result.returncode == 2 and "none of the texts" in result.stderr


def run(data: Path, out: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(data), str(data / out), *options],
        capture_output=True,
        text=True,
        check=False,
    )
