"""Jobs against the real server: heard in the background, kept over kill -9, called back, cancelled, forgotten."""

from __future__ import annotations

import difflib
import hashlib
import hmac
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.server_process import MAIN, Served, serve, speech, stop, write_wav
from tests.invariants.fake_model import make_fake_model

PROMPTS = ("all-circuits-busy-now", "call-forwarding", "vm-goodbye", "demo-thanks")
WAIT_S = 90.0


def talk(times: int) -> np.ndarray:
    quiet = np.zeros(12_000, np.float32)
    return np.concatenate([part for name in PROMPTS for part in (speech(name, 16000), quiet)] * times)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_wav(tmp_path_factory.mktemp("sound") / "short.wav", talk(1), 16000).read_bytes()


def ask(
    served: Served, method: str, address: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(served.address + address, body, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def send(
    served: Served, sound: bytes, fields: dict[str, str] | None = None, **headers: str
) -> tuple[int, Any]:
    mark = uuid.uuid4().hex
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in (fields or {}).items()
    ]
    head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="../talk.wav"\r\n\r\n'.encode()
    body = b"".join(parts) + head + sound + f"\r\n--{mark}--\r\n".encode()
    return ask(
        served, "POST", "/v1/jobs", body, Content_Type=f"multipart/form-data; boundary={mark}", **headers
    )


def until(served: Served, id: str, wanted: tuple[str, ...] = ("done",)) -> Any:
    """The job when it has one of these states."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        status, job = ask(served, "GET", f"/v1/jobs/{id}")
        assert status == 200
        if job["status"] in wanted:
            return job
        assert job["status"] in ("queued", "running"), job
        time.sleep(0.05)
    raise AssertionError(f"not {wanted} in {WAIT_S} s: {job}")


def whole(served: Served, sound: bytes) -> list[str]:
    _, answer = ask(served, "POST", "/v1/listen", sound)
    return [word["word"] for word in answer["results"]["channels"][0]["alternatives"][0]["words"]]


def transcript(served: Served, id: str) -> Any:
    grains = "response_format=verbose_json&timestamp_granularities=word&timestamp_granularities=segment"
    status, told = ask(served, "GET", f"/v1/jobs/{id}/transcript?{grains}")
    assert status == 200
    return told


def test_a_job_is_heard_and_says_what_the_file_says(served: Served, short: bytes) -> None:
    status, job = send(served, short)
    assert status == 202 and job["status"] in ("queued", "running") and job["name"] == "talk.wav"
    done = until(served, job["id"])
    assert done["progress"]["share"] == 1.0 and done["sha256"] == hashlib.sha256(short).hexdigest()
    assert done["duration"] == pytest.approx(len(short) / 32000, abs=0.05)
    assert [word["word"] for word in transcript(served, job["id"])["words"]] == whole(served, short) != []
    assert not list((served.home / "jobs" / "files").iterdir())
    _, listed = ask(served, "GET", "/v1/jobs?status=done")
    assert job["id"] in [one["id"] for one in listed["data"]]
    assert ask(served, "DELETE", f"/v1/jobs/{job['id']}")[0] == 204
    assert ask(served, "GET", f"/v1/jobs/{job['id']}")[0] == 404


def test_an_idempotency_key_makes_one_job(served: Served, short: bytes) -> None:
    key = uuid.uuid4().hex
    first = send(served, short, Idempotency_Key=key)
    again = send(served, short, Idempotency_Key=key)
    assert (first[0], again[0]) == (202, 200) and first[1]["id"] == again[1]["id"]
    assert send(served, short[:-2000], Idempotency_Key=key)[0] == 409


def test_what_is_no_sound_is_refused_or_fails_in_words(served: Served) -> None:
    status, told = send(served, b"dear sir or madam, " * 50)
    assert status == 400 and "format" in told["err_msg"]
    status, job = send(served, b"fLaC" + bytes(4000))
    assert status == 202
    failed = until(served, job["id"], ("failed",))
    assert failed["error"]["code"] == "audio" and failed["error"]["advice"]


def test_webhooks_go_only_where_the_operator_said(served: Served, short: bytes) -> None:
    status, told = send(served, short, {"webhook": "http://169.254.169.254/latest"})
    assert status == 400 and "not an allowed webhook host" in told["err_msg"]


@pytest.fixture
def hook() -> Iterator[tuple[int, list[tuple[dict[str, str], bytes]]]]:
    """An HTTP server that keeps what it is sent; the first call is answered 500."""
    calls: list[tuple[dict[str, str], bytes]] = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            calls.append((dict(self.headers), body))
            self.send_response(500 if len(calls) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1], calls
    server.shutdown()
    server.server_close()
    thread.join()


def killed_in_the_middle(home: Path, sound: bytes, webhook: str, *options: str) -> tuple[Served, Any]:
    """A server that was killed while it heard this, begun again; and the job."""
    first = serve(home, *options)
    try:
        status, job = send(first, sound, {"webhook": webhook})
        assert status == 202
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            _, now = ask(first, "GET", f"/v1/jobs/{job['id']}")
            if now["progress"]["processed_s"] > 20 or now["status"] == "done":
                break
    finally:
        first.process.kill()
        stop(first)
    return serve(home, *options), job


def test_a_job_survives_kill_9_goes_on_where_it_was_and_calls_back(
    tmp_path: Path, hook: tuple[int, list[tuple[dict[str, str], bytes]]]
) -> None:
    port, calls = hook
    address = f"http://127.0.0.1:{port}/done"
    options = ("--jobs-lease-s", "0.5", "--allowed-webhook-hosts", f"127.0.0.1:{port}")
    model = str(make_fake_model(tmp_path))
    for times in (25, 100, 400):
        sound = write_wav(tmp_path / "long.wav", talk(times), 16000).read_bytes()
        second, job = killed_in_the_middle(tmp_path, sound, address, *options, "--model", model)
        _, found = ask(second, "GET", f"/v1/jobs/{job['id']}")
        if found["status"] != "done" or found["attempts"] > 1:
            break
        stop(second)  # a quick machine had heard it all: longer
    try:
        assert found["progress"]["processed_s"] > 20
        done = until(second, job["id"])
        assert done["attempts"] == 2 and done["duration"] == pytest.approx(len(sound) / 32000, abs=0.05)
        told = transcript(second, job["id"])
        heard = [word["word"] for word in told["words"]]
        # As in one piece, but for words beside the pause where hearing began anew.
        unbroken = whole(second, sound)
        matching = difflib.SequenceMatcher(None, heard, unbroken, autojunk=False).get_matching_blocks()
        assert len(unbroken) > 100
        assert sum(block.size for block in matching) >= max(len(heard), len(unbroken)) - 4
        starts = [word["start"] for word in told["words"]]
        assert starts == sorted(starts) and starts[-1] > 0.9 * done["duration"]
        deadline = time.monotonic() + WAIT_S
        while (len(calls) < 2 or job["id"] not in calls[-1][1].decode()) and time.monotonic() < deadline:
            time.sleep(0.1)
        headers, body = calls[-1]
        moment, digest = (part.split("=")[1] for part in headers["Silica-Signature"].split(","))
        secret = job["webhook"]["secret"]
        expected = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(digest, expected)
        assert json.loads(body)["type"] == "job.done" and json.loads(body)["job"]["id"] == job["id"]
        assert "secret" not in body.decode()
        # What is running can be cancelled, and its recording goes.
        for _ in range(9):
            _, another = send(second, sound)
            status, cancelled = ask(second, "DELETE", f"/v1/jobs/{another['id']}")
            if status == 200:
                break  # otherwise it was over already, and is forgotten
        assert cancelled["status"] == "cancelled"
        assert not list((tmp_path / "jobs" / "files").iterdir())
    finally:
        stop(second)


def test_the_command_sends_a_folder_and_shows_what_was_heard(
    served: Served, short: bytes, tmp_path: Path
) -> None:
    (tmp_path / "one.wav").write_bytes(short)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "bad.flac").write_bytes(b"fLaC" + bytes(900))
    (tmp_path / "deep" / "letter.wav").write_bytes(b"dear sir")
    environment = {**os.environ, "SILICA_SERVER": served.address}

    def jobs(*line: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", MAIN, "jobs", *line]
        return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)

    done = jobs("add", str(tmp_path), "--json")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    sent = {Path(job["file"]).name: job["id"] for job in json.loads(done.stdout)["jobs"]}
    assert set(sent) == {"one.wav", "bad.flac"}  # letter.wav was not taken
    assert "letter.wav: The file is in no format known here." in done.stderr
    until(served, sent["bad.flac"], ("failed",))
    until(served, sent["one.wav"])
    assert jobs("show", sent["one.wav"]).stdout.split() == whole(served, short)
    listed = json.loads(jobs("list", "--json").stdout)["jobs"]
    assert [job["name"] for job in listed if job["name"] == "one.wav"] == ["one.wav"]
    missing = jobs("show", "job_" + 24 * "0")
    assert missing.returncode == 2 and missing.stderr.startswith("silica: There is no such job")
