"""The cost of a second of live audio, by server process, and the latencies of clients that send no Finalize.

    python -m benchmarks.stream_cost --clips FOLDER                       4, 20, 40 and 60 streams
    python -m benchmarks.stream_cost --message-ms 20 --streams 40
    git worktree add ../before COMMIT && python -m benchmarks.stream_cost --baseline ../before
    python -m benchmarks.stream_cost -- --decoder greedy                  options of `silica serve` after --

Each measurement starts a server with the shipped model and plays clips to /v1/listen in real time, several on each
stream, each clip followed by two seconds of faint noise. With --baseline the servers of both checkouts are measured
in the same run, in turns.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import websockets

from acoustic.constants import SAMPLE_RATE
from benchmarks.server_process import (
    DECODE,
    ENGINE,
    EVENT_LOOP,
    OTHER,
    SUPERVISOR,
    Server,
    cpu_seconds,
    machine_busy_seconds,
    with_total,
)

ROOT = Path(__file__).parents[1]
STAGGER_S = 2.0
NOISE_S = 2.0
NOISE_LEVEL_DB = -66.0
SUFFIXES = {".wav", ".flac", ".mp3", ".ogg", ".opus", ".g722"}
REFUSED_STATUS = {429, 503}
REFUSED_CLOSE_CODE = 1013
SETTLE_S = 1.0

Samples = npt.NDArray[np.int16]


# ---- audio


@dataclass(frozen=True)
class Clip:
    """Where a clip and its speech lie in a stream, in seconds."""

    start_s: float
    speech_start_s: float
    speech_end_s: float


@dataclass(frozen=True)
class Program:
    """The audio of one stream."""

    audio: Samples
    clips: list[Clip]


def read_programs(folder: Path, count: int, seconds: float) -> list[Program]:
    """Programs of at most `seconds` seconds (but at least one clip). Clips repeat when the folder has too few."""
    from service.audio.files import read_mono

    if not folder.is_dir():
        raise SystemExit(f"The folder {folder} does not exist. Name a folder of speech with --clips.")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise SystemExit(f"No audio files ({', '.join(sorted(SUFFIXES))}) in {folder}.")
    random.Random(0).shuffle(files)
    noise = np.random.default_rng(0)
    decoded: dict[Path, npt.NDArray[np.float32]] = {}
    programs: list[Program] = []
    next_file = 0
    while len(programs) < count:
        parts: list[npt.NDArray[np.float32]] = []
        clips: list[Clip] = []
        length = 0
        while True:
            file = files[next_file % len(files)]
            if file not in decoded:
                decoded[file] = read_mono(file).astype(np.float32)
            clip = decoded[file]
            end = length + clip.size + int(NOISE_S * SAMPLE_RATE)
            if clips and end > seconds * SAMPLE_RATE:
                break
            start_s, end_s = speech_extent(clip)
            at_s = length / SAMPLE_RATE
            clips.append(Clip(at_s, at_s + start_s, at_s + end_s))
            pause = noise.standard_normal(int(NOISE_S * SAMPLE_RATE)) * 10 ** (NOISE_LEVEL_DB / 20)
            parts += [clip, pause.astype(np.float32)]
            length = end
            next_file += 1
        audio = np.concatenate(parts)
        programs.append(Program(np.round(np.clip(audio, -1, 1) * 32767).astype(np.int16), clips))
    return programs


def speech_extent(clip: npt.NDArray[np.float32], frame_s: float = 0.02) -> tuple[float, float]:
    """Start and end of speech in seconds, by energy: from the first to the last 60 ms above the threshold.

    The threshold is 30 dB below the loud frames, or 10 dB above the quiet ones if that is more.
    """
    size = int(frame_s * SAMPLE_RATE)
    frames = clip[: clip.size // size * size].reshape(-1, size)
    if not len(frames):
        return 0.0, clip.size / SAMPLE_RATE
    level_db = 10 * np.log10(np.mean(frames.astype(np.float64) ** 2, axis=1) + 1e-10)
    quiet, loud = np.percentile(level_db, (10, 95))
    above = level_db > min(loud - 10, max(loud - 30, quiet + 10))
    runs = np.flatnonzero(np.convolve(above, np.ones(3), "valid") == 3)
    if not len(runs):
        return 0.0, clip.size / SAMPLE_RATE
    return float(runs[0] * frame_s), float((runs[-1] + 3) * frame_s)


# ---- clients


@dataclass
class Stream:
    """One client: what it sent and received, and when."""

    program: Program
    sent_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    received: list[tuple[float, str | bytes]] = field(default_factory=list)
    """Parsed after the run, so that parsing does not compete with the server."""
    close_s: float = float("inf")
    refused: bool = False
    error: str = ""

    async def run(self, url: str, message_size: int, start_s: float) -> None:
        """Connect, play the audio, receive until the server closes."""
        try:
            await asyncio.sleep(start_s - time.monotonic())
            async with websockets.connect(
                url, compression=None, max_size=2**22, open_timeout=60, ping_interval=None
            ) as socket:
                playing = asyncio.create_task(self.play(socket, message_size))
                try:
                    async for message in socket:
                        self.received.append((time.monotonic(), message))
                finally:
                    if self.close_s == float("inf"):
                        playing.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await playing
                if self.close_s == float("inf"):
                    self.error = f"the server closed the stream: {socket.close_code} {socket.close_reason}"
        except websockets.InvalidStatus as error:
            self.error = f"HTTP {error.response.status_code}"
            self.refused = error.response.status_code in REFUSED_STATUS
        except (OSError, websockets.WebSocketException) as error:
            self.error = f"{type(error).__name__}: {error}"
            code = getattr(getattr(error, "rcvd", None), "code", None)
            self.refused = code == REFUSED_CLOSE_CODE and not self.sent_s

    async def play(self, socket: "websockets.ClientConnection", message_size: int) -> None:
        """Send each message when a microphone would have recorded its last sample."""
        audio = self.program.audio
        begin_s = time.monotonic()
        for at in range(0, audio.size, message_size):
            piece = audio[at : at + message_size]
            due_s = begin_s + (at + piece.size) / SAMPLE_RATE
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await socket.send(piece.tobytes())
            self.sent_s.append(time.monotonic())
            self.late_s.append(self.sent_s[-1] - due_s)
        await socket.send('{"type":"CloseStream"}')
        self.close_s = time.monotonic()

    def sent_at(self, position_s: float, message_size: int) -> float:
        """When the message with the audio at this position was sent."""
        at = int(position_s * SAMPLE_RATE) // message_size
        return self.sent_s[min(at, len(self.sent_s) - 1)]

    def measure(self, message_size: int) -> "Latencies":
        """The latencies of every clip, from the moment when the start or end of its speech was sent."""
        found = Latencies()
        clips = self.program.clips
        results = [(now_s, json.loads(message)) for now_s, message in self.received]
        for _, message in results:
            if message["type"] == "Error":
                self.error = f"{message.get('code', '')}: {message.get('message', '')}"
        words = [
            (now_s, message["is_final"], word["start"], word["end"])
            for now_s, message in results
            if message["type"] == "Results"
            for word in message["channel"]["alternatives"][0]["words"]
        ]
        for at, clip in enumerate(clips):
            # Reported word times are not exact; half the pause is left on either side.
            low_s = clip.start_s - NOISE_S / 2
            high_s = clips[at + 1].start_s - NOISE_S / 2 if at + 1 < len(clips) else float("inf")
            own = [word for word in words if low_s <= (word[2] + word[3]) / 2 < high_s]
            finals = [word for word in own if word[1]]
            if not finals:
                found.without_final += 1
                continue
            final_s = max(word[0] for word in finals)
            found.last_word_to_final.append(final_s - self.sent_at(clip.speech_end_s, message_size))
            found.after_close += final_s > self.close_s
            first_s = min(word[0] for word in own)
            found.first_word_to_interim.append(first_s - self.sent_at(clip.speech_start_s, message_size))
            found.reported_end.append(max(word[3] for word in finals) - clip.speech_end_s)
        return found


@dataclass
class Latencies:
    """Latencies in seconds, one value per clip."""

    last_word_to_final: list[float] = field(default_factory=list)
    first_word_to_interim: list[float] = field(default_factory=list)
    reported_end: list[float] = field(default_factory=list)
    """The end of the last word in the server's result, minus the end of speech by energy."""
    without_final: int = 0
    after_close: int = 0

    def add(self, other: "Latencies") -> None:
        self.last_word_to_final += other.last_word_to_final
        self.first_word_to_interim += other.first_word_to_interim
        self.reported_end += other.reported_end
        self.without_final += other.without_final
        self.after_close += other.after_close


async def play_all(url: str, streams: Sequence[Stream], message_size: int) -> None:
    """Run the streams; their starts are spread over two seconds."""
    rng = random.Random(len(streams))
    start_s = time.monotonic()
    await asyncio.gather(
        *(stream.run(url, message_size, start_s + rng.random() * STAGGER_S) for stream in streams)
    )


# ---- measurement


def measure(server: Server, programs: Sequence[Program], arguments: argparse.Namespace) -> dict[str, Any]:
    """Load one server that is ready with as many streams as there are programs."""
    time.sleep(SETTLE_S)
    memory_before = server.memory_mb()
    roles = server.roles()
    streams = [Stream(program) for program in programs]
    message_size = SAMPLE_RATE * arguments.message_ms // 1000
    url = f"{server.facts['listen']}?encoding=linear16&sample_rate={SAMPLE_RATE}&interim_results=true"
    if arguments.endpointing_ms:
        url += f"&endpointing={arguments.endpointing_ms}"
    windows_before, batches_before = server.batches()
    before, own_before_s = cpu_seconds(list(roles)), time.process_time()
    busy_before_s, begin_s = machine_busy_seconds(), time.monotonic()
    asyncio.run(play_all(url, streams, message_size))
    after, own_s = cpu_seconds(list(roles)), time.process_time() - own_before_s
    busy_s, wall_s = machine_busy_seconds() - busy_before_s, time.monotonic() - begin_s
    windows, batches = server.batches()
    windows, batches = windows - windows_before, batches - batches_before
    memory_after, started = server.memory_mb(), server.roles().keys() - roles.keys()

    latencies = Latencies()
    for stream in streams:
        if stream.sent_s:
            latencies.add(stream.measure(message_size))
    sent = [min(len(stream.sent_s) * message_size, stream.program.audio.size) for stream in streams]
    audio_s = sum(sent) / SAMPLE_RATE
    cpu_s: dict[str, float] = defaultdict(float)
    for pid, role in roles.items():
        if pid in after:
            cpu_s[role] += after[pid] - before[pid]
    per_second = 1000 / audio_s if audio_s else 0.0
    lateness = [value for stream in streams for value in stream.late_s]
    return {
        "streams": len(streams),
        "promised_streams": server.capacity,
        "refused": sum(stream.refused for stream in streams),
        "failed": sum(bool(stream.error) and not stream.refused for stream in streams),
        "errors": sorted({stream.error for stream in streams if stream.error})[:5],
        "audio_s": round(audio_s, 1),
        "cpu_ms_per_audio_s": with_total({role: value * per_second for role, value in cpu_s.items()}),
        "load_generator_ms_per_audio_s": round(own_s * per_second, 2),
        "audio_s_per_window": round(audio_s / windows, 3) if windows else None,
        "windows_per_batch": round(windows / batches, 2) if batches else None,
        "other_load_cores": round(max(0.0, busy_s - own_s - sum(cpu_s.values())) / wall_s, 2),
        "send_late_s": spread(lateness),
        "last_word_to_final_s": spread(latencies.last_word_to_final),
        "first_word_to_interim_s": spread(latencies.first_word_to_interim),
        "reported_end_after_speech_end_s": spread(latencies.reported_end),
        "clips": len(latencies.last_word_to_final) + latencies.without_final,
        "clips_without_final": latencies.without_final,
        "finals_after_close": latencies.after_close,
        "processes": {role: list(roles.values()).count(role) for role in dict.fromkeys(roles.values())},
        "processes_replaced": len(started),
        "ready_s": round(server.ready_s, 2),
        "memory_mb": {"after start": memory_before, "after load": memory_after},
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50 and p95 in seconds."""
    return {f"p{p}": round(float(np.percentile(values, p)), 3) for p in (50, 95)} if values else {}


def commit_of(checkout: Path) -> str:
    """The commit of a checkout."""
    line = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


# ---- tables


def table_rows(cells: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows of one table: a measure and its value for every server, and the ratio of two servers."""
    order = [EVENT_LOOP, ENGINE, DECODE, SUPERVISOR, OTHER]
    present = dict.fromkeys(role for cell in cells.values() for role in cell["cpu_ms_per_audio_s"])
    roles = sorted(
        present, key=lambda role: (role == "total", order.index(role) if role in order else len(order))
    )

    def row(label: str, digits: int, *keys: str) -> tuple[str, ...]:
        values = [lookup(cell, keys) for cell in cells.values()]
        texts = ["" if value is None else f"{value:.{digits}f}" for value in values]
        return label, *texts, *([""] if len(values) == 2 else [])

    def compared(label: str, digits: int, *keys: str) -> tuple[str, ...]:
        values = [lookup(cell, keys) for cell in cells.values()]
        found = row(label, digits, *keys)
        if len(values) == 2 and values[0] and values[1] is not None:
            return *found[:-1], f"{values[1] / values[0]:.2f}"
        return found

    for role in roles:
        label = "all server processes" if role == "total" else role
        yield compared(f"CPU, {label} (ms per second of audio)", 1, "cpu_ms_per_audio_s", role)
    yield compared("CPU, load generator (ms per second of audio)", 1, "load_generator_ms_per_audio_s")
    yield row("seconds of audio per window", 2, "audio_s_per_window")
    yield row("windows per batch", 2, "windows_per_batch")
    for key, label in (
        ("last_word_to_final_s", "last word to final"),
        ("first_word_to_interim_s", "first word to interim result"),
    ):
        for p in ("p50", "p95"):
            yield compared(f"{label}, {p} (s)", 2, key, p)
    yield row(
        "reported end of last word after end of speech, p50 (s)", 2, "reported_end_after_speech_end_s", "p50"
    )
    yield row("streams promised by the server", 0, "promised_streams")
    yield row("streams refused", 0, "refused")
    yield row("streams failed", 0, "failed")
    yield row("clips played", 0, "clips")
    yield row("clips without a final", 0, "clips_without_final")
    yield row("finals after the end of the stream", 0, "finals_after_close")
    yield compared("memory after start (MB)", 0, "memory_mb", "after start", "total")
    yield compared("memory after load (MB)", 0, "memory_mb", "after load", "total")
    yield compared("start to ready (s)", 1, "ready_s")
    yield row("other load on the machine (cores)", 2, "other_load_cores")


def lookup(cell: Any, keys: Sequence[str]) -> float | None:
    """A nested value, or None."""
    for key in keys:
        cell = cell.get(key) if isinstance(cell, Mapping) else None
    return cell  # type: ignore[no-any-return]


def print_table(streams: int, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one table to the terminal."""
    head = (f"{streams} streams", *cells, *(["ratio"] if len(cells) == 2 else []))
    print(f"\n{head[0]:58}" + "".join(f"{name:>16}" for name in head[1:]))
    for label, *values in table_rows(cells):
        print(f"{label:58}" + "".join(f"{value:>16}" for value in values))
    for name, cell in cells.items():
        for error in cell["errors"]:
            print(f"{name}: {error}")
    sys.stdout.flush()


def main(line: Sequence[str] | None = None) -> int:
    """Measure every number of streams on every server."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clips",
        type=Path,
        default=ROOT.parent / "shared" / "speech" / "dev",
        help="folder of audio files (default: %(default)s)",
    )
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[4, 20, 40, 60], help="(default: %(default)s)"
    )
    parser.add_argument(
        "--message-ms", type=int, default=100, help="length of a message (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="maximum length of a stream (default: %(default)s)"
    )
    parser.add_argument("--hop", type=float, metavar="S", help="serve with this hop only")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that serve clients")
    parser.add_argument("--endpointing-ms", type=int, metavar="MS", help="the streams' endpointing")
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="CHECKOUT",
        help="a checkout of another commit, measured in the same run",
    )
    parser.add_argument("--note", default="", help="conditions of the run, saved with the result")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the result, such as results/stream_cost.json"
    )
    parser.add_argument("serve", nargs="*", metavar="-- OPTION", help="options of `silica serve`")
    arguments = parser.parse_args(line)
    options = list(arguments.serve)
    if arguments.hop:
        options += ["--hops-s", f"{arguments.hop:g}"]
    if arguments.workers:
        options += ["--workers", str(arguments.workers)]
    programs = read_programs(arguments.clips, max(arguments.streams), arguments.seconds)
    checkouts = {"current": ROOT}
    if arguments.baseline:
        if not (arguments.baseline / "service").is_dir():
            raise SystemExit(f"{arguments.baseline} is not a checkout of this repository.")
        checkouts = {"baseline": arguments.baseline.resolve(), **checkouts}

    from benchmarks.provenance import provenance

    result: dict[str, Any] = {
        **provenance(),
        "commits": {name: commit_of(checkout) for name, checkout in checkouts.items()},
        "clips": arguments.clips.name,
        "message_ms": arguments.message_ms,
        "seconds": arguments.seconds,
        "endpointing_ms": arguments.endpointing_ms,
        "serve_options": options,
        "note": arguments.note,
        "cells": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        homes = {name: Path(folder) / name for name in checkouts}
        for name, checkout in checkouts.items():
            # Compiles and caches; not measured.
            with Server(checkout, homes[name], options):
                pass
        for streams in arguments.streams:
            cells = {}
            for name, checkout in checkouts.items():
                with Server(checkout, homes[name], options) as server:
                    cells[name] = measure(server, programs[:streams], arguments)
                result["cells"].append({"server": name, **cells[name]})
            if not arguments.json:
                print_table(streams, cells)
            if arguments.out:
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
