"""`silica transcribe` through a server: at once, as jobs, streamed; and streamed without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.server_process import MAIN, Served, speech, write_wav


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, one of them twice, and one that is no sound."""
    place = tmp_path_factory.mktemp("talks")
    quiet = np.zeros(16000, np.float32)
    busy = np.concatenate([speech("all-circuits-busy-now", 16000), quiet])
    write_wav(place / "busy.wav", busy, 16000)
    write_wav(place / "again.wav", busy, 16000)
    write_wav(place / "forward.wav", np.concatenate([speech("call-forwarding", 16000), quiet]), 16000)
    (place / "bad.flac").write_bytes(b"fLaC" + bytes(900))
    return place


def transcribe(
    *line: str, stdin: bytes | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-c", MAIN, "transcribe", *line]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(program, env=environment, input=stdin, capture_output=True, timeout=120)


def words_in(done: subprocess.CompletedProcess[bytes]) -> dict[str, list[tuple[str, float]]]:
    """Per file its words and when they began; those that failed are left out."""
    return {
        Path(one["file"]).name: [(word["text"], word["start_s"]) for word in one["words"]]
        for one in json.loads(done.stdout)["files"]
        if one["error"] is None
    }


def test_jobs_and_a_server_say_the_same_and_one_bad_file_stops_nothing(
    served: Served, folder: Path, tmp_path: Path
) -> None:
    at_once = transcribe(str(folder), "--server", served.address, "--json")
    jobs = transcribe(str(folder), "--jobs", "--json", SILICA_SERVER=served.address)
    assert at_once.returncode == jobs.returncode == 1
    assert [Path(one["file"]).name for one in json.loads(jobs.stdout)["files"]] == [
        "again.wav",
        "bad.flac",
        "busy.wav",
        "forward.wav",
    ]
    assert words_in(jobs) == words_in(at_once)
    assert json.loads(jobs.stdout)["model"] == json.loads(at_once.stdout)["model"] is not None
    assert set(words_in(jobs)) == {"again.wav", "busy.wav", "forward.wav"} and words_in(jobs)["busy.wav"]
    for done in (at_once, jobs):
        assert b"bad.flac" in done.stderr and b"Traceback" not in done.stderr
    # A second time the jobs are already done: written as subtitles, in a folder.
    options = ("--jobs", "--server", served.address, "--format", "srt", "--out", str(tmp_path))
    again = transcribe(str(folder / "busy.wav"), *options)
    assert again.returncode == 0 and again.stdout == b"", again.stderr
    assert (tmp_path / "busy.wav.srt").read_text().startswith("1\n00:00:")


@pytest.mark.parametrize("way", [(), ("--jobs",), ("--realtime",)])
def test_a_model_that_the_server_does_not_have_is_refused(
    served: Served, folder: Path, way: tuple[str, ...]
) -> None:
    line = (str(folder / "busy.wav"), "--server", served.address, "--model", "whale", *way)
    done = transcribe(*line)
    assert done.returncode == 2 and done.stdout == b""
    assert b"has no model 'whale'. It serves " in done.stderr and b"Traceback" not in done.stderr


def test_watched_through_a_server_and_from_the_standard_input(served: Served, folder: Path) -> None:
    file = folder / "busy.wav"
    whole = transcribe("-", "--server", served.address, stdin=file.read_bytes())
    live = transcribe(str(file), "--server", served.address, "--realtime")
    assert whole.returncode == live.returncode == 0, (whole.stderr, live.stderr)
    assert live.stdout.split() == whole.stdout.split() != []


def test_watched_without_a_server(folder: Path) -> None:
    line = (str(folder / "forward.wav"), "--realtime", "--model", "tiny", "--decoder", "greedy", "--json")
    done = transcribe(*line)
    assert done.returncode == 0, done.stderr
    (heard,) = json.loads(done.stdout)["files"]
    assert heard["words"] and heard["took_s"] >= heard["duration_s"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("--server", "http://127.0.0.1:9"), b"Start a server with"),
        (("--jobs", "--realtime"), b"exclude each other"),
        (("--jobs", "--width", "9"), b"--width has no effect with --server"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(folder: Path, line: tuple[str, ...], told: bytes) -> None:
    done = transcribe(str(folder / "busy.wav"), *line)
    assert done.returncode == 2 and done.stdout == b""
    assert told in done.stderr and b"Traceback" not in done.stderr
