"""Load on a running server: N real-time streams against /v1/listen, what their clients feel, and how many fit.

python benchmarks/load.py --audio FOLDER --streams 20
python benchmarks/load.py --audio FOLDER --ramp 400            # the most streams that stay in time
python benchmarks/load.py --audio FOLDER --streams 100 --check MODEL   # every final against the plain loop
python benchmarks/load.py --audio FOLDER --url ws://127.0.0.1:1 ws://127.0.0.1:2   # two servers at the same time
--keep NAME puts the result into results/load.json and load.md, with date, commit and machine.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import time
import urllib.request
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import websockets

# Run as a script: the repository's packages, not the measurements of the same names beside this file.
if sys.path[0] == str(Path(__file__).parent):
    sys.path[0] = str(Path(__file__).parents[2])

RATE = 16_000
STAGGER_S = 2.0
SUFFIXES = {".wav", ".flac", ".mp3", ".ogg", ".opus", ".g722"}
HISTOGRAMS = ("chunk_response", "first_partial", "finalization", "queue_wait", "forward", "decode", "lag")

Sound = npt.NDArray[np.int16]


@dataclass
class ClientResult:
    """What one client saw."""

    program: int
    finals: list[str] = field(default_factory=list)
    result_lag_s: list[float] = field(default_factory=list)
    word_s: list[float] = field(default_factory=list)
    first_partial_s: list[float] = field(default_factory=list)
    endpoint_s: list[float] = field(default_factory=list)
    close_s: list[float] = field(default_factory=list)
    finalize_s: list[float] = field(default_factory=list)
    error: str = ""


@dataclass
class Program:
    """What one client says: its sound, and where each recording in it ends."""

    sound: Sound
    ends: list[int]


def read_programs(paths: Sequence[Path], count: int, seconds: float) -> list[Program]:
    """`count` different pieces of at least so many seconds, each of whole files with a pause between."""
    from service.audio.files import read_file

    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    files = [file for file in files if file.suffix in SUFFIXES]
    if not files:
        raise SystemExit(
            f"No sound files ({', '.join(sorted(SUFFIXES))}) under {', '.join(map(str, paths))}."
        )
    programs: list[Program] = []
    following = 0
    while len(programs) < count and following < max(len(files), 1):
        parts: list[Sound] = []
        ends: list[int] = []
        while sum(part.size for part in parts) < seconds * RATE:
            sound = read_file(files[following % len(files)])[0]
            parts.append(np.round(np.clip(sound, -1, 1) * 32767).astype(np.int16))
            ends.append(sum(part.size for part in parts))
            parts.append(np.zeros(RATE // 2, np.int16))
            following += 1
        programs.append(Program(np.concatenate(parts), ends))
    return programs


class Client:
    """One stream in real time."""

    def __init__(
        self, url: str, program: int, what: Program, chunk_ms: int, start_s: float, finalize: bool
    ) -> None:
        self.url, self.sound, self.start_s = url, what.sound, start_s
        self.finalize_at = what.ends if finalize else []
        self.asked_s: list[float] = []
        self.chunk = RATE * chunk_ms // 1000
        self.sent_s: list[float] = []
        self.ends: list[int] = []
        self.close_sent_s = 0.0
        self.results = ClientResult(program)
        self.seen: list[tuple[str, float, float]] = []

    async def run(self) -> ClientResult:
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
        """Each chunk leaves when its last sample has been spoken."""
        await asyncio.sleep(max(0.0, self.start_s - time.monotonic()))
        begin_s = time.monotonic()
        for at in range(0, self.sound.size, self.chunk):
            piece = self.sound[at : at + self.chunk]
            await asyncio.sleep(max(0.0, begin_s + (at + piece.size) / RATE - time.monotonic()))
            await socket.send(piece.tobytes())
            self.sent_s.append(time.monotonic())
            self.ends.append(at + piece.size)
            if self.finalize_at and at + piece.size >= self.finalize_at[0]:
                # As a client does that knows by itself when somebody has finished speaking.
                self.finalize_at = self.finalize_at[1:]
                self.asked_s.append(time.monotonic())
                await socket.send('{"type":"Finalize"}')
        self.close_sent_s = time.monotonic()
        await socket.send('{"type":"CloseStream"}')

    def spoken_s(self, position_s: float) -> float:
        """When the sound up to this position had been sent."""
        at = bisect_left(self.ends, round(position_s * RATE))
        return self.sent_s[min(at, len(self.sent_s) - 1)]

    def receive(self, message: dict[str, Any], now_s: float) -> None:
        if message["type"] == "Error":
            self.results.error = f"{message['code']}: {message['message']}"
        if message["type"] != "Results":
            return
        words = message["channel"]["alternatives"][0]["words"]
        end_s = message["start"] + message["duration"]
        if not self.close_sent_s:
            self.results.result_lag_s.append(now_s - self.spoken_s(end_s))
        if words and not self.seen:
            self.results.first_partial_s.append(now_s - self.spoken_s(words[0]["start"]))
        for word in words:
            if not any(word["word"] == text and abs(word["start"] - at) < 0.2 for text, at, _ in self.seen):
                self.seen.append((word["word"], word["start"], now_s))
        if message["is_final"]:
            self.final(message, words, now_s)

    def final(self, message: dict[str, Any], words: list[dict[str, Any]], now_s: float) -> None:
        self.results.finals.append(message["channel"]["alternatives"][0]["transcript"])
        if message["from_finalize"] and self.asked_s:
            self.results.finalize_s.append(now_s - self.asked_s.pop(0))
        for word in words:
            first_s = min(
                (s for text, at, s in self.seen if text == word["word"] and abs(word["start"] - at) < 0.2),
                default=now_s,
            )
            self.results.word_s.append(first_s - self.spoken_s(word["end"]))
        if self.close_sent_s:
            self.results.close_s.append(now_s - self.close_sent_s)
        elif message["speech_final"] and words:
            self.results.endpoint_s.append(now_s - self.spoken_s(words[-1]["end"]))
        self.seen = []


async def run_streams(
    arguments: argparse.Namespace, server: str, programs: list[Program], streams: int
) -> list[ClientResult]:
    """So many streams, started over two seconds."""
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
    """In seconds, to the millisecond."""
    if not values:
        return {}
    return {f"p{p}": round(float(np.percentile(values, p)), 3) for p in (50, 95, 99)}


def scrape(url: str) -> dict[str, list[tuple[float, float]]]:
    """The server's own histograms: cumulative counts by upper bound."""
    with urllib.request.urlopen(url.replace("ws", "http", 1) + "/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in HISTOGRAMS}
    for line in text.splitlines():
        for name in HISTOGRAMS:
            if line.startswith(f"silica_{name}_seconds_bucket"):
                bound = line.split('le="')[1].split('"')[0]
                found[name].append((float(bound), float(line.rsplit(" ", 1)[1])))
    return found


def server_percentiles(
    before: dict[str, list[tuple[float, float]]], after: dict[str, list[tuple[float, float]]]
) -> dict[str, dict[str, float]]:
    """Percentiles between two scrapes, straight lines within a bucket."""
    message: dict[str, dict[str, float]] = {}
    for name in HISTOGRAMS:
        counts = [
            (b, n - (before[name][at][1] if before[name] else 0)) for at, (b, n) in enumerate(after[name])
        ]
        if counts and counts[-1][1]:
            message[name] = {f"p{p}": round(within(counts, p / 100), 4) for p in (50, 95, 99)}
    return message


def within(counts: Sequence[tuple[float, float]], share: float) -> float:
    wanted, low, below = share * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            return (
                low
                if bound == float("inf")
                else low + (bound - low) * (wanted - below) / max(1e-9, count - below)
            )
        low, below = bound, count
    return low


def summary(results: Sequence[ClientResult], server: dict[str, dict[str, float]]) -> dict[str, Any]:
    """One object with everything that was felt."""

    def all_of(name: str) -> list[float]:
        return [value for each in results for value in getattr(each, name)]

    return {
        "streams": len(results),
        "failed": sum(bool(each.error) for each in results),
        "errors": sorted({each.error for each in results if each.error})[:5],
        "finals": sum(len(each.finals) for each in results),
        "client_s": {
            "sound_to_result": percentiles(all_of("result_lag_s")),
            "first_partial": percentiles(all_of("first_partial_s")),
            "word": percentiles(all_of("word_s")),
            "speech_end_to_final": percentiles(all_of("endpoint_s")),
            "finalize_to_final": percentiles(all_of("finalize_s")),
            "close_to_last_final": percentiles([max(each.close_s) for each in results if each.close_s]),
        },
        "server_s": server,
    }


def in_time(result: dict[str, Any], limit_s: float) -> bool:
    """Nobody failed, and results follow the sound."""
    lag = result["client_s"]["sound_to_result"]
    return not result["failed"] and bool(lag) and lag["p95"] <= limit_s


def check_finals(
    results: Sequence[ClientResult], programs: list[Program], model: str, language_model: str
) -> dict[str, int]:
    """Every final against the same model, windows and decoder in a plain loop on this thread."""
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
        samples = (programs[number].sound.astype(np.float32) / 32768)[None]
        events = transcribe(
            lambda w: backend.forward([w])[0], samples, StreamSettings(), backend.config, plan, utterances
        )
        expected[number] = [event.text for event in events if isinstance(event, Final)]
    same = [each.finals == expected[each.program] for each in results]
    for each, equal in zip(results, same, strict=True):
        if not equal and not each.error:
            print(f"differs: {each.finals}\n    from {expected[each.program]}", file=sys.stderr)
    return {"streams_checked": len(same), "streams_equal": sum(same)}


def ramps(lowest: int, highest: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..., from `lowest` to `highest`."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if scale * factor > highest:
                return
            if scale * factor >= lowest:
                yield scale * factor
        scale *= 10


def keep(name: str, result: Any, arguments: argparse.Namespace) -> None:
    """Into results/load.json, and the page that is made of it."""
    folder = Path(__file__).parent / "results"
    file = folder / "load.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    kept[name] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        "sound": ", ".join(path.name for path in arguments.audio),
        "note": arguments.note,
        "runs": result,
    }
    file.write_text(json.dumps(kept, indent=1) + "\n")
    (folder / "load.md").write_text(page(kept))


def page(kept: dict[str, Any]) -> str:
    """Every kept measurement as a table."""
    lines = [
        "Measured by benchmarks/load.py: real-time streams of speech, the generator on the same machine."
    ]
    columns = ("sound_to_result", "first_partial", "word", "speech_end_to_final", "finalize_to_final")
    for name, one in kept.items():
        lines += ["", f"## {name}", ""]
        lines += [
            f"{one['date']}, commit {one['commit']}, {one['machine']}; {one['sound']}. {one['note']}",
            "",
        ]
        heads = ("server", "streams", "failed", "finals equal", *columns, "chunk response (server)")
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for run in one["runs"]:
            check = run.get("check")
            equal = f"{check['streams_equal']} of {check['streams_checked']}" if check else ""
            figures = [shown(run["client_s"][column]) for column in columns]
            response = shown(run["server_s"].get("chunk_response", {}))
            cells = [run["server"], run["streams"], run["failed"], equal, *figures, response]
            lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join([*lines, "", "Seconds: median / 95th percentile.", ""])


def shown(figures: dict[str, float]) -> str:
    """Median and 95th percentile."""
    return f"{figures['p50']:.2f} / {figures['p95']:.2f}" if figures else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", nargs="+", default=["ws://127.0.0.1:8765"], help="servers, loaded together")
    parser.add_argument("--names", nargs="+", default=[], help="what to call these servers")
    parser.add_argument("--keep", metavar="NAME", help="write the result into results/")
    parser.add_argument("--note", default="", help="what else was going on, to be kept with it")
    parser.add_argument("--finalize", action="store_true", help="send Finalize at the end of each recording")
    parser.add_argument("--audio", type=Path, nargs="+", required=True, help="files or folders of speech")
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="of sound a stream, at least")
    parser.add_argument("--programs", type=int, default=20, help="different pieces of sound")
    parser.add_argument("--chunk-ms", type=int, default=100)
    parser.add_argument(
        "--ramp", type=int, metavar="MOST", help="more and more streams up to MOST, then bisect"
    )
    parser.add_argument("--least", type=int, default=1, help="where the ramp begins")
    parser.add_argument("--limit-s", type=float, default=2.5, help="p95 from sound to result that is in time")
    parser.add_argument("--check", metavar="MODEL", help="compare every final with the plain loop")
    parser.add_argument("--language-model", default="shipped", help="of the server, for --check")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    programs = read_programs(arguments.audio, arguments.programs, arguments.seconds)

    names = arguments.names or arguments.url
    runs: list[dict[str, Any]] = []

    async def together(streams: int) -> list[list[ClientResult]]:
        return await asyncio.gather(
            *(run_streams(arguments, url, programs, streams) for url in arguments.url)
        )

    def once(streams: int) -> bool:
        before = [scrape(url) for url in arguments.url]
        fine = True
        for at, results in enumerate(asyncio.run(together(streams))):
            server = server_percentiles(before[at], scrape(arguments.url[at]))
            result = {"server": names[at], **summary(results, server)}
            if arguments.check:
                result["check"] = check_finals(results, programs, arguments.check, arguments.language_model)
            print(json.dumps(result, indent=None if arguments.json else 2), flush=True)
            runs.append(result)
            fine = fine and in_time(result, arguments.limit_s)
        if arguments.keep:
            keep(arguments.keep, runs, arguments)
        return fine

    if not arguments.ramp:
        return 0 if once(arguments.streams) else 1
    good, bad = 0, arguments.ramp + 1
    for streams in ramps(arguments.lowest, arguments.ramp):
        if not once(streams):
            bad = streams
            break
        good = streams
    while bad - good > max(1, good // 10):
        middle = (good + bad) // 2
        if once(middle):
            good = middle
        else:
            bad = middle
    print(json.dumps({"most_streams_in_time": good, "limit_s": arguments.limit_s}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
