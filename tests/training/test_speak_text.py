"""scripts/speak_text.py: which sentences are spoken, and what is changed between the network and the vocoder."""

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
    """Speech for training and for a test with transcripts, and text that shares sentences with both."""
    speech = tmp_path / "shared" / "speech"
    for folder, text in (("train-crowd", KNOWN), ("dev", TESTED)):
        (speech / folder).mkdir(parents=True)
        write_manifest(speech / folder / "manifest.jsonl", [Clip(Path("a.wav"), 3.0, text)])
    (tmp_path / "shared" / "text").mkdir()
    lines = [KNOWN, KNOWN, f"{KNOWN}.", f"Indeed {TESTED}.", "In 1999 it was sold for five pounds."]
    lines += [f"{NEW} {day}!" for day in ("today", "daily", "now")]
    for name, said in (
        ("general_tatoeba", lines),
        ("general_wikisplit", ["Nobody may say what is share-alike."]),
    ):
        with lzma.open(tmp_path / "shared" / "text" / f"{name}.txt.xz", "wt") as file:
            file.write("\n".join(said))
    return tmp_path


def test_new_words_come_first_and_what_is_tested_never(script, data: Path) -> None:
    folder, draw = data / "shared" / "text", random.Random(1)
    texts, heard = script.texts_and_words(data, folder, draw)
    assert heard == Counter(KNOWN.split())
    assert not any("estuary" in text or "1999" in text or "share-alike" in text for text in texts)
    order = list(script.chosen(texts, heard, draw))
    assert sorted(order) == sorted(texts)
    assert order[0].startswith(NEW) and KNOWN in order[-1]
    turns = list(script.mixed(texts, script.texts_and_words(data, folder, draw)[1], draw))
    assert (
        turns[0].startswith(NEW)
        and sorted(turns[::2]) == sorted(texts)
        and sorted(turns[1::2]) == sorted(texts)
    )


def test_another_mouth_moves_the_formants_and_another_melody_the_pitch(script) -> None:
    peak = np.zeros((601, 3), np.float32)
    peak[100] = 1.0
    for seed in range(20):
        low, high = (script._mouth(601, pitch, np.random.default_rng(seed)) for pitch in (0.5, 1.2))
        assert (np.diff(low) >= 0).all() and low[0] == 0 and low[-1] <= 600
        where = [int(script._stretched(peak, mouth)[:, 0].argmax()) for mouth in (low, high)]
        assert where[0] < where[1]  # the lower voice has the longer tract
    melody = np.array([0.0, 180.0, 220.0, 200.0, 12.0], np.float32)
    sung = script._sung(melody, 0.5, 0.5)
    assert sung[0] == 0 and sung[-1] == 12
    middle = 0.5 * np.exp(np.log([180, 220, 200]).mean())
    assert sung[1:4] == pytest.approx(middle * (np.array([180, 220, 200]) * 0.5 / middle) ** 0.5, rel=1e-5)
    assert script._sung(np.full(3, 12.0, np.float32), 0.5, 1.0).tolist() == [12.0] * 3


def test_sentences_are_spoken_and_the_same_again(data: Path) -> None:
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


def test_whole_books_are_read_as_they_are_and_the_most_by_chance(
    script, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = data / "library"
    library.mkdir()
    (library / "books_whole.txt").write_text(
        "".join(f"{NEW} {name}.\n" for name in ("here", "there", "nowhere"))
    )
    assert len(script.texts_and_words(data, library, random.Random(1))[0]) == 3
    monkeypatch.setattr(script, "MOST", 2)
    some = {tuple(script.texts_and_words(data, library, random.Random(seed))[0]) for seed in range(9)}
    assert len(some) > 1 and all(len(texts) == 2 for texts in some)


def test_what_is_missing_is_named(data: Path) -> None:
    refused = run(data / "shared", "out")
    assert refused.returncode == 2 and "gather_speech.py" in refused.stderr
    if importlib.util.find_spec("hibari") is None:
        refused = run(data, "out")
        assert refused.returncode == 2 and "pip install hibari-tts" in refused.stderr
    else:
        refused = run(data, "out", "--texts", str(data))
        assert refused.returncode == 2 and "none of the texts" in refused.stderr


def run(data: Path, out: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(data), str(data / out), *options],
        capture_output=True,
        text=True,
        check=False,
    )
