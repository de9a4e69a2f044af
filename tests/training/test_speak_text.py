"""scripts/speak_text.py speaks what the recordings lack, with the synthesisers that the tests install."""

import json
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from training.data.manifests import Clip, read_manifest, write_manifest

SCRIPT = Path(__file__).parents[2] / "scripts" / "speak_text.py"


def speak(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


def test_new_words_are_spoken_first_and_what_is_tested_never(tmp_path: Path) -> None:
    if shutil.which("flite") is None:
        pytest.skip("flite speaks the sentences of this test: install the Debian package `flite`")
    known = "the cat sat on the mat and then the dog sat on it too"
    tested = "a heron stalked along the muddy bank of the quiet estuary"
    new = "gardeners pruned seventeen overgrown quince trees"
    speech = tmp_path / "shared" / "speech"
    for folder, text in (("train-crowd", known), ("dev", tested)):
        (speech / folder).mkdir(parents=True)
        write_manifest(speech / folder / "manifest.jsonl", [Clip(Path("a.wav"), 3.0, text)])
    (tmp_path / "shared" / "text").mkdir()
    lines = "\n".join(
        [known] * 2
        + [f"{known}.", f"Indeed {tested}.", *(f"{new} {day}!" for day in ("today", "daily", "now"))]
    )
    with lzma.open(tmp_path / "shared" / "text" / "some.txt.xz", "wt") as file:
        file.write(lines)
    done = speak(str(tmp_path), str(tmp_path / "out"), "--hours", "0.01")
    assert done.returncode == 0, done.stderr
    clips = read_manifest(tmp_path / "out")
    texts = [clip.text or "" for clip in clips]
    assert texts[0].startswith(new) and known in texts[1:]
    assert not any("estuary" in text for text in texts)
    for clip in clips:
        assert clip.audio.stat().st_size == pytest.approx(32_000 * clip.duration_s, rel=0.01)
    assert {"speaker", "licence"} <= json.loads(
        (tmp_path / "out" / "manifest.jsonl").read_text().split("\n")[0]
    ).keys()


def test_a_folder_without_speech_is_named(tmp_path: Path) -> None:
    refused = speak(str(tmp_path), str(tmp_path / "out"))
    assert refused.returncode == 2 and "gather_speech.py" in refused.stderr
