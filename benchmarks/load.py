"""Load test: N real-time streams against /v1/listen of a running server, with the latencies that clients see.

    python -m benchmarks.load --audio FOLDER --streams 20
    python -m benchmarks.load --audio FOLDER --ramp 400             search for the maximum number of streams in time
    python -m benchmarks.load --audio FOLDER --streams 100 --check MODEL   compare finals with an unbatched run
    python -m benchmarks.load --audio FOLDER --url ws://127.0.0.1:1 ws://127.0.0.1:2   two servers at the same time

--save NAME adds the result to `results/load.json`.
"""

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import websockets

from benchmarks.provenance import provenance

RATE = 16_000
STAGGER_S = 2.0
PAUSE_S = 0.5
SUFFIXES = {".wav", ".flac", ".mp3", ".ogg", ".opus", ".g722"}
HISTOGRAMS = ("chunk_response", "first_partial", "finalization", "queue_wait", "forward", "decode", "lag")
COLUMNS = ("audio_to_result", "first_partial", "word", "speech_end_to_final", "finalize_to_final")

Samples = npt.NDArray[np.int16]
Histograms = dict[str, list[tuple[float, float]]]


@dataclass
class ClientResult:
    """The finals and latencies of one client, in seconds."""

    program: int
    finals: list[str] = field(default_factory=list)
    audio_to_result: list[float] = field(default_factory=list)
    word: list[float] = field(default_factory=list)
    first_partial: list[float] = field(default_factory=list)
    endpoint: list[float] = field(default_factory=list)
    close: list[float] = field(default_factory=list)
    finalize: list[float] = field(default_factory=list)
    error: str = ""


@dataclass
class Program:
    """The audio of one client: several recordings with pauses, and the end of each in samples."""

    audio: Samples
    ends: list[int]


def read_programs(paths: Sequence[Path], count: int, seconds: float) -> list[Program]:
    """Up to `count` different programs of at least `seconds` seconds."""
    from service.audio.files import read_file

    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    files = [file for file in files if file.suffix in SUFFIXES]
    if not files:
        raise SystemExit(
            f"No audio files ({', '.join(sorted(SUFFIXES))}) under {', '.join(map(str, paths))}."
        )
    programs: list[Program] = []
    next_file = 0
    while len(programs) < count and next_file < len(files):
        parts: list[Samples] = []
        ends: list[int] = []
        while sum(part.size for part in parts) < seconds * RATE:
            audio = read_file(files[next_file % len(files)])[0]
            parts.append(np.round(np.clip(audio, -1, 1) * 32767).astype(np.int16))
            ends.append(sum(part.size for part in parts))
            parts.append(np.zeros(int(PAUSE_S * RATE), np.int16))
            next_file += 1
        programs.append(Program(np.concatenate(parts), ends))
    return programs


class Client:
    """One stream in real time."""

    def __init__(
        self, url: str, number: int, program: Program, chunk_ms: int, start_s: float, finalize: bool
    ) -> None:
        self.url, self.audio, self.start_s = url, program.audio, start_s
        self.finalize_at = program.ends if finalize else []
        self.finalize_sent_s: list[float] = []
        self.chunk = RATE * chunk_ms // 1000
        self.sent_s: list[float] = []
        self.chunk_ends: list[int] = []
        self.close_sent_s = 0.0
        self.results = ClientResult(number)
        self.shown: list[
            tuple[str, float, float]
        ] = []  # words since the last final: text, start, time of arrival

    async def run(self) -> ClientResult:
        """Connect, send the audio, collect the results."""
        try:
            async with websockets.connect(
                self.url, compression=None, max_size=2**22, open_timeout=60, ping_interval=None
            ) as socket:
                sending = asyncio.create_task(self.send(socket))
                async for message in socket:
                    self.receive(json.loads(message), time.monotonic())
                await sending
        except Exception as error:
            self.results.error = f"{type(error).__name__}: {error}"
        return self.results

    async def send(self, socket: "websockets.ClientConnection") -> None:
        """Send each chunk at the time at which a microphone would have recorded its last sample."""
        await asyncio.sleep(max(0.0, self.start_s - time.monotonic()))
        begin_s = time.monotonic()
        for at in range(0, self.audio.size, self.chunk):
            piece = self.audio[at : at + self.chunk]
            await asyncio.sleep(max(0.0, begin_s + (at + piece.size) / RATE - time.monotonic()))
            await socket.send(piece.tobytes())
            self.sent_s.append(time.monotonic())
            self.chunk_ends.append(at + piece.size)
            if self.finalize_at and at + piece.size >= self.finalize_at[0]:
                # Simulates a client with its own endpointing.
                self.finalize_at = self.finalize_at[1:]
                self.finalize_sent_s.append(time.monotonic())
                await socket.send('{"type":"Finalize"}')
        self.close_sent_s = time.monotonic()
        await socket.send('{"type":"CloseStream"}')

    def sent_at(self, position_s: float) -> float:
        """When the audio up to this position was sent."""
        at = bisect_left(self.chunk_ends, round(position_s * RATE))
        return self.sent_s[min(at, len(self.sent_s) - 1)]

    def receive(self, message: dict[str, Any], now_s: float) -> None:
        """Measure one message."""
        if message["type"] == "Error":
            self.results.error = f"{message['code']}: {message['message']}"
        if message["type"] != "Results":
            return
        words = message["channel"]["alternatives"][0]["words"]
        end_s = message["start"] + message["duration"]
        if not self.close_sent_s:
            self.results.audio_to_result.append(now_s - self.sent_at(end_s))
        if words and not self.shown:
            self.results.first_partial.append(now_s - self.sent_at(words[0]["start"]))
        for word in words:
            if not any(word["word"] == text and abs(word["start"] - at) < 0.2 for text, at, _ in self.shown):
                self.shown.append((word["word"], word["start"], now_s))
        if message["is_final"]:
            self.receive_final(message, words, now_s)

    def receive_final(self, message: dict[str, Any], words: list[dict[str, Any]], now_s: float) -> None:
        """Measure a final and the words in it."""
        self.results.finals.append(message["channel"]["alternatives"][0]["transcript"])
        if message["from_finalize"] and self.finalize_sent_s:
            self.results.finalize.append(now_s - self.finalize_sent_s.pop(0))
        for word in words:
            first_s = min(
                (s for text, at, s in self.shown if text == word["word"] and abs(word["start"] - at) < 0.2),
                default=now_s,
            )
            self.results.word.append(first_s - self.sent_at(word["end"]))
        if self.close_sent_s:
            self.results.close.append(now_s - self.close_sent_s)
        elif message["speech_final"] and words:
            self.results.endpoint.append(now_s - self.sent_at(words[-1]["end"]))
        self.shown = []


async def run_streams(
    arguments: argparse.Namespace, server: str, programs: list[Program], streams: int
) -> list[ClientResult]:
    """Run this many streams; their starts are spread over two seconds."""
    rng = random.Random(streams)
    url = f"{server}/v1/listen?encoding=linear16&sample_rate={RATE}&interim_results=true"
    now_s = time.monotonic() + 0.5
    clients = [
        Client(
            url,
            number % len(programs),
            programs[number % len(programs)],
            arguments.chunk_ms,
            start_s,
            arguments.finalize,
        )
        for number, start_s in enumerate(now_s + rng.random() * STAGGER_S for _ in range(streams))
    ]
    return list(await asyncio.gather(*(client.run() for client in clients)))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in seconds."""
    if not values:
        return {}
    return {f"p{p}": round(float(np.percentile(values, p)), 3) for p in (50, 95, 99)}


def scrape(url: str) -> Histograms:
    """The server's histograms: cumulative counts by upper bound."""
    with urllib.request.urlopen(url.replace("ws", "http", 1) + "/metrics", timeout=30) as response:
        text = response.read().decode()
    found: Histograms = {name: [] for name in HISTOGRAMS}
    for line in text.splitlines():
        for name in HISTOGRAMS:
            if line.startswith(f"silica_{name}_seconds_bucket"):
                bound = line.split('le="')[1].split('"')[0]
                found[name].append((float(bound), float(line.rsplit(" ", 1)[1])))
    return found


def server_percentiles(before: Histograms, after: Histograms) -> dict[str, dict[str, float]]:
    """Percentiles of the observations between two scrapes."""
    found: dict[str, dict[str, float]] = {}
    for name in HISTOGRAMS:
        counts = [
            (b, n - (before[name][at][1] if before[name] else 0)) for at, (b, n) in enumerate(after[name])
        ]
        if counts and counts[-1][1]:
            found[name] = {f"p{p}": round(quantile(counts, p / 100), 4) for p in (50, 95, 99)}
    return found


def quantile(counts: Sequence[tuple[float, float]], fraction: float) -> float:
    """A quantile of a cumulative histogram, interpolated linearly within its bucket."""
    target, low, below = fraction * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= target:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (target - below) / max(1e-9, count - below)
        low, below = bound, count
    return low


def summarize(results: Sequence[ClientResult], server: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The result of one run."""

    def all_of(name: str) -> list[float]:
        return [value for each in results for value in getattr(each, name)]

    return {
        "streams": len(results),
        "failed": sum(bool(each.error) for each in results),
        "errors": sorted({each.error for each in results if each.error})[:5],
        "finals": sum(len(each.finals) for each in results),
        "client_s": {
            "audio_to_result": percentiles(all_of("audio_to_result")),
            "first_partial": percentiles(all_of("first_partial")),
            "word": percentiles(all_of("word")),
            "speech_end_to_final": percentiles(all_of("endpoint")),
            "finalize_to_final": percentiles(all_of("finalize")),
            "close_to_last_final": percentiles([max(each.close) for each in results if each.close]),
        },
        "server_s": server,
    }


def in_time(result: dict[str, Any], limit_s: float) -> bool:
    """Whether no stream failed and the p95 from audio to result is within the limit."""
    lag = result["client_s"]["audio_to_result"]
    return not result["failed"] and bool(lag) and lag["p95"] <= limit_s


def check_finals(
    results: Sequence[ClientResult], programs: list[Program], model: str, language_model: str
) -> dict[str, int]:
    """Compares all finals with those of the same model, windows and decoder, without batching or threads."""
    from acoustic.runtime import open_backend
    from acoustic.windows import with_hop
    from service.scheduling.decode_worker import UtteranceTable
    from service.scheduling.device import alphabet_and_search
    from service.session.events import Final
    from service.session.stream_settings import StreamSettings
    from tests.session.synchronous_driver import transcribe

    backend = open_backend(model)
    _, search = alphabet_and_search(model)
    utterances = UtteranceTable(
        backend.config.alphabet, None if language_model == "none" else language_model, search
    )
    plan = with_hop(backend.config, backend.plan, 0.64)
    expected: dict[int, list[str]] = {}
    for number in sorted({each.program for each in results}):
        samples = (programs[number].audio.astype(np.float32) / 32768)[None]
        events = transcribe(
            lambda w: backend.forward([w])[0], samples, StreamSettings(), backend.config, plan, utterances
        )
        expected[number] = [event.text for event in events if isinstance(event, Final)]
    equal = [each.finals == expected[each.program] for each in results]
    for each, same in zip(results, equal, strict=True):
        if not same and not each.error:
            print(f"differs: {each.finals}\n    expected {expected[each.program]}", file=sys.stderr)
    return {"streams_checked": len(equal), "streams_equal": sum(equal)}


def ramp(lowest: int, highest: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..., from `lowest` to `highest`."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if scale * factor > highest:
                return
            if scale * factor >= lowest:
                yield scale * factor
        scale *= 10


def save(name: str, runs: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Add the runs to results/load.json."""
    file = Path(__file__).parent / "results" / "load.json"
    saved = json.loads(file.read_text()) if file.exists() else {}
    saved[name] = {
        **provenance(),
        "audio": ", ".join(path.name for path in arguments.audio),
        "note": arguments.note,
        "runs": runs,
    }
    file.write_text(json.dumps(saved, indent=1) + "\n")


def main() -> int:
    """Run once, or search for the maximum."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", nargs="+", default=["ws://127.0.0.1:8765"], help="servers, all loaded at the same time"
    )
    parser.add_argument("--names", nargs="+", default=[], help="labels of the servers (default: their URLs)")
    parser.add_argument("--save", metavar="NAME", help="add the result to results/load.json")
    parser.add_argument("--note", default="", help="conditions of the run, saved with the result")
    parser.add_argument("--finalize", action="store_true", help="send Finalize at the end of each recording")
    parser.add_argument("--audio", type=Path, nargs="+", required=True, help="files or folders of speech")
    parser.add_argument("--streams", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="minimum length of a stream")
    parser.add_argument("--programs", type=int, default=20, help="number of different streams")
    parser.add_argument("--chunk-ms", type=int, default=100, help="length of a message")
    parser.add_argument(
        "--ramp", type=int, metavar="MAX", help="increase the streams up to MAX, then bisect for the maximum"
    )
    parser.add_argument("--ramp-from", type=int, default=1, help="where the ramp starts")
    parser.add_argument("--limit-s", type=float, default=2.5, help="limit of p95 from audio to result")
    parser.add_argument("--check", metavar="MODEL", help="compare all finals with an unbatched run of MODEL")
    parser.add_argument("--language-model", default="shipped", help="the server's, for --check")
    parser.add_argument("--json", action="store_true", help="print one JSON line per run")
    arguments = parser.parse_args()
    programs = read_programs(arguments.audio, arguments.programs, arguments.seconds)
    names = arguments.names or arguments.url
    runs: list[dict[str, Any]] = []

    async def run_servers(streams: int) -> list[list[ClientResult]]:
        return await asyncio.gather(
            *(run_streams(arguments, url, programs, streams) for url in arguments.url)
        )

    def run(streams: int) -> bool:
        before = [scrape(url) for url in arguments.url]
        passed = True
        for at, results in enumerate(asyncio.run(run_servers(streams))):
            server = server_percentiles(before[at], scrape(arguments.url[at]))
            result = {"server": names[at], **summarize(results, server)}
            if arguments.check:
                result["check"] = check_finals(results, programs, arguments.check, arguments.language_model)
            print(json.dumps(result, indent=None if arguments.json else 2), flush=True)
            runs.append(result)
            passed = passed and in_time(result, arguments.limit_s)
        if arguments.save:
            save(arguments.save, runs, arguments)
        return passed

    if not arguments.ramp:
        return 0 if run(arguments.streams) else 1
    good, bad = 0, arguments.ramp + 1
    for streams in ramp(arguments.ramp_from, arguments.ramp):
        if not run(streams):
            bad = streams
            break
        good = streams
    while bad - good > max(1, good // 10):
        middle = (good + bad) // 2
        if run(middle):
            good = middle
        else:
            bad = middle
    print(json.dumps({"max_streams_in_time": good, "limit_s": arguments.limit_s}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
