"""Prepares the data folder of scripts/train_shipped_model.sh: all training speech as WAV.

    python scripts/gather_speech.py SHARED MIRROR DATA

SHARED is the developers' data folder; MIRROR holds clones of the repositories that SHARED/collect/sources.jsonl and
scripts/more_sources.jsonl name. DATA gets `shared` (training clips decoded, everything else as links) and `collected`
(the clips that SHARED/collect/collect.py cuts). Clips keep their file names, so the manifests stay valid. Existing
clips are kept. Takes three minutes: collect.py alone, which encodes Opus and starts one git process per clip, takes 25.
"""

import argparse
import functools
import importlib.util
import json
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from acoustic.constants import SAMPLE_RATE
from training.data.audio import read_clip


def main() -> None:
    """Link, decode, collect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared", type=Path, help="the developers' data folder")
    parser.add_argument("mirror", type=Path, help="folder of git clones")
    parser.add_argument("data", type=Path, help="output folder")
    arguments = parser.parse_args()
    shared, data = arguments.shared.resolve(), arguments.data.resolve()
    if not (shared / "speech").is_dir():
        parser.error(f"{shared} has no folder `speech`: it is not the developers' data folder")
    for entry in sorted(shared.iterdir()):
        if entry.name != "speech":
            _link(entry, data / "shared" / entry.name)
    with multiprocessing.Pool() as pool:
        for folder in sorted((shared / "speech").iterdir()):
            copy = data / "shared" / "speech" / folder.name
            if "train" not in folder.name:
                _link(folder, copy)
            elif not (copy / "manifest.jsonl").exists():
                print(f"{folder.name}: {_decode(folder, copy, pool)} clips decoded", flush=True)
    for more in ([], ["--sources", str(Path(__file__).with_name("more_sources.jsonl"))]):
        sys.argv = ["collect.py", "--mirror", str(arguments.mirror), "--out", str(data / "collected"), *more]
        _collector(shared / "collect" / "collect.py").main()


def _link(target: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(target)


def _decode(folder: Path, copy: Path, pool: Any) -> int:
    copy.mkdir(parents=True, exist_ok=True)
    names = [json.loads(line)["audio"] for line in (folder / "manifest.jsonl").read_text().splitlines()]
    for _ in pool.imap_unordered(functools.partial(_decode_clip, folder, copy), names, chunksize=32):
        pass
    shutil.copy(folder / "manifest.jsonl", copy)  # last: marks the folder as complete
    return len(names)


def _decode_clip(folder: Path, copy: Path, name: str) -> None:
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    samples = (read_clip(folder / name) * 32767).round().clip(-32768, 32767)
    _write(samples.astype(np.int16), copy / name, 0)


def _write(samples: NDArray[np.int16], target: Path, kbit: int) -> None:
    """Writes WAV whatever the suffix says: readers detect the format from the content. Replaces collect.write_opus."""
    with target.open("wb") as file:
        soundfile.write(file, samples, SAMPLE_RATE, format="WAV", subtype="PCM_16")


def _collector(path: Path) -> Any:
    """The module collect.py with its Opus encoder and its git calls replaced."""
    spec = importlib.util.spec_from_file_location("collect", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} cannot be read")
    collect: Any = importlib.util.module_from_spec(spec)
    sys.modules["collect"] = collect  # its worker processes import their functions by this name
    spec.loader.exec_module(collect)
    collect.write_opus = _write
    collect.subprocess = BatchGit()
    return collect


class BatchGit:
    """Replaces the module `subprocess`: reads all files of a repository through one `git cat-file --batch`."""

    CalledProcessError = subprocess.CalledProcessError

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Handles `git --git-dir=... cat-file blob NAME`; passes other commands on."""
        if command[2:4] != ["cat-file", "blob"]:
            return subprocess.run(command, **options)
        return subprocess.CompletedProcess(command, 0, self._blob(command[1], command[4]))

    def _blob(self, git_dir: str, name: str) -> bytes:
        if git_dir not in self._running:
            self._running[git_dir] = subprocess.Popen(
                ["git", git_dir, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        git = self._running[git_dir]
        assert git.stdin is not None and git.stdout is not None
        git.stdin.write(f"{name}\n".encode())
        git.stdin.flush()
        size = int(git.stdout.readline().split()[2])
        content = git.stdout.read(size)
        git.stdout.read(1)  # line break
        return content


if __name__ == "__main__":
    main()
