"""`silica mic` as people run it: from a file, from a sound card that PulseAudio makes, and without any."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.server_process import MAIN, Served, speech, write_wav

PROMPT = "all-circuits-busy-now"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sound = np.concatenate([speech(PROMPT, 16000), np.zeros(16000, np.float32)])
    return write_wav(tmp_path_factory.mktemp("sound") / "talk.wav", sound, 16000)


def mic(
    served: Served, *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", MAIN, "mic", "--server", served.address, *options]
    return subprocess.run(
        line, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=60
    )


def offline(served: Served, file: Path) -> str:
    request = urllib.request.Request(f"{served.address}/v1/listen", file.read_bytes(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["results"]["channels"][0]["alternatives"][0]["transcript"])


def test_a_file_spoken_in_real_time_is_written_as_it_settles(served: Served, recording: Path) -> None:
    done = mic(served, "--from", str(recording))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == offline(served, recording).split() != []


def test_a_model_that_the_server_does_not_have_is_refused(served: Served, recording: Path) -> None:
    done = mic(served, "--from", str(recording), "--model", "whale")
    assert done.returncode == 2 and "has no model 'whale'. It serves " in done.stderr


@pytest.mark.parametrize("form", ["srt", "vtt", "json"])
def test_every_output_holds_every_word(served: Served, recording: Path, tmp_path: Path, form: str) -> None:
    done = mic(
        served, "--from", str(recording), "--format", form, "--out", str(tmp_path / "out"), "--seconds", "2"
    )
    assert done.returncode == 0 and done.stdout == "", done.stderr
    text = (tmp_path / "out").read_text()
    begins = {"srt": "1\n00:00:", "vtt": "WEBVTT\n\n00:", "json": '{"text": "'}
    assert text.startswith(begins[form])


@pytest.mark.parametrize(
    ("file", "options", "told"),
    [
        ("talk.wav", ["--hotword", "word:99"], "weight"),
        ("talk.wav", ["--server", "ws://127.0.0.1:9"], "Cannot connect to"),
        ("absent.wav", [], "does not exist"),
        ("no-sound.wav", [], "cannot be decoded as audio"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    served: Served, recording: Path, file: str, options: list[str], told: str
) -> None:
    recording.with_name("no-sound.wav").write_text("words, not sound")
    bad = mic(served, "--from", str(recording.with_name(file)), *options)
    assert bad.returncode == 2
    assert bad.stderr.startswith("silica: ") and told in bad.stderr and "Traceback" not in bad.stderr


def test_without_a_sound_card_it_says_so(served: Served) -> None:
    listed = mic(served, "--list", "--json")
    if json.loads(listed.stdout)["devices"]:
        pytest.skip(f"this machine has a sound card: {listed.stdout}")
    done = mic(served)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("silica: No microphone") and "silica mic --list" in done.stderr


@pytest.fixture
def sound_card(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A PulseAudio of this test's own with one output whose monitor is the only microphone."""
    if not shutil.which("pulseaudio") or not list(
        Path("/usr/lib").glob("*/alsa-lib/libasound_module_pcm_pulse.so")
    ):
        pytest.skip("needs Debian's pulseaudio and libasound2-plugins")
    socket = tmp_path / "pulse.socket"
    (tmp_path / "asound.conf").write_text(
        "</usr/share/alsa/alsa.conf>\n"
        f'pcm.room {{ type pulse server "unix:{socket}" device "room.monitor" hint.description "room" }}\n'
        f'ctl.room {{ type pulse server "unix:{socket}" }}\n'
    )
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "PULSE_SERVER": f"unix:{socket}",
        "ALSA_CONFIG_PATH": str(tmp_path / "asound.conf"),
    }
    daemon = subprocess.Popen(
        ["pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--disable-shm=yes",
         "-L", f"module-native-protocol-unix socket={socket} auth-anonymous=1",
         "-L", "module-null-sink sink_name=room rate=16000 channels=1"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        while subprocess.run(["pactl", "info"], env=environment, capture_output=True).returncode != 0:
            if daemon.poll() is not None or time.monotonic() > deadline:
                pytest.skip("PulseAudio does not start here")
            time.sleep(0.1)
        yield environment
    finally:
        daemon.terminate()
        daemon.wait(10)


def test_what_a_sound_card_hears_is_written(
    served: Served, sound_card: dict[str, str], recording: Path
) -> None:
    listed = mic(served, "--list", "--json", environment=sound_card)
    names = [device["name"] for device in json.loads(listed.stdout)["devices"]]
    assert "room" in names
    line = [
        sys.executable,
        "-c",
        MAIN,
        "mic",
        "--server",
        served.address,
        "--device",
        "room",
        "--format",
        "json",
    ]
    hearing = subprocess.Popen(
        line, env=sound_card, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        # The player starts when the microphone is open: then the monitor has a listener.
        deadline = time.monotonic() + 30
        while (
            "RUNNING" not in _sources(sound_card) and hearing.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        subprocess.run(["paplay", str(recording)], env=sound_card, check=True, timeout=30)
        hearing.send_signal(signal.SIGINT)  # as Ctrl-C: the last words are waited for
        out, told = hearing.communicate(timeout=60)
    finally:
        hearing.kill()
    assert hearing.returncode == 0, told
    assert json.loads(out)["segments"], told


def _sources(environment: dict[str, str]) -> str:
    return subprocess.run(
        ["pactl", "list", "short", "sources"], env=environment, capture_output=True, text=True
    ).stdout
