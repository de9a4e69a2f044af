"""Load on a running server: N real-time streams against /v1/listen, what their clients feel, and how many fit.

python tests/perf/load.py --audio FOLDER --streams 20
python tests/perf/load.py --audio FOLDER --ramp 400            # the most streams that stay in time
python tests/perf/load.py --audio FOLDER --streams 100 --check MODEL   # every final against the plain loop
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

# Run as a script: the repository's packages, not the measurements of the same names beside this file.
if sys.path[0] == str(Path(__file__).parent):
    sys.path[0] = str(Path(__file__).parents[2])

RATE = 16_000
STAGGER_S = 2.0
SUFFIXES = {".wav", ".flac", ".mp3", ".ogg", ".opus", ".g722"}
HISTOGRAMS = ("chunk_response", "first_partial", "finalisation", "queue_wait", "forward", "decode", "lag")

Sound = npt.NDArray[np.int16]


@dataclass
class Heard:
    """What one client saw."""

    program: int
    finals: list[str] = field(default_factory=list)
    result_lag_s: list[float] = field(default_factory=list)
    word_s: list[float] = field(default_factory=list)
    first_partial_s: list[float] = field(default_factory=list)
    endpoint_s: list[float] = field(default_factory=list)
    close_s: list[float] = field(default_factory=list)
    error: str = ""


def read_programs(paths: Sequence[Path], count: int, seconds: float) -> list[Sound]:
    """`count` different pieces of at least so many seconds, each of whole files with a pause between."""
    from service.audio.files import read_file

    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    files = [file for file in files if file.suffix in SUFFIXES]
    if not files:
        raise SystemExit(
            f"No sound files ({', '.join(sorted(SUFFIXES))}) under {', '.join(map(str, paths))}."
        )
    programs: list[Sound] = []
    following = 0
    while len(programs) < count and following < max(len(files), 1):
        parts: list[Sound] = []
        while sum(part.size for part in parts) < seconds * RATE:
            sound = read_file(files[following % len(files)])[0]
            parts.append(np.round(np.clip(sound, -1, 1) * 32767).astype(np.int16))
            parts.append(np.zeros(RATE // 2, np.int16))
            following += 1
        programs.append(np.concatenate(parts))
    return programs


class Client:
    """One stream in real time."""

    def __init__(self, url: str, program: int, sound: Sound, chunk_ms: int, start_s: float) -> None:
        self.url, self.sound, self.start_s = url, sound, start_s
        self.chunk = RATE * chunk_ms // 1000
        self.sent_s: list[float] = []
        self.ends: list[int] = []
        self.close_sent_s = 0.0
        self.heard = Heard(program)
        self.seen: list[tuple[str, float, float]] = []

    async def run(self) -> Heard:
        try:
            async with websockets.connect(
                self.url, compression=None, max_size=2**22, open_timeout=60, ping_interval=None
            ) as socket:
                sending = asyncio.create_task(self.send(socket))
                async for message in socket:
                    self.receive(json.loads(message), time.monotonic())
                await sending
        except Exception as error:
            self.heard.error = f"{type(error).__name__}: {error}"
        return self.heard

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
        self.close_sent_s = time.monotonic()
        await socket.send('{"type":"CloseStream"}')

    def spoken_s(self, position_s: float) -> float:
        """When the sound up to this position had been sent."""
        at = bisect_left(self.ends, round(position_s * RATE))
        return self.sent_s[min(at, len(self.sent_s) - 1)]

    def receive(self, message: dict[str, Any], now_s: float) -> None:
        if message["type"] == "Error":
            self.heard.error = f"{message['code']}: {message['message']}"
        if message["type"] != "Results":
            return
        words = message["channel"]["alternatives"][0]["words"]
        end_s = message["start"] + message["duration"]
        if not self.close_sent_s:
            self.heard.result_lag_s.append(now_s - self.spoken_s(end_s))
        if words and not self.seen:
            self.heard.first_partial_s.append(now_s - self.spoken_s(words[0]["start"]))
        for word in words:
            if not any(word["word"] == text and abs(word["start"] - at) < 0.2 for text, at, _ in self.seen):
                self.seen.append((word["word"], word["start"], now_s))
        if message["is_final"]:
            self.final(message, words, now_s)

    def final(self, message: dict[str, Any], words: list[dict[str, Any]], now_s: float) -> None:
        self.heard.finals.append(message["channel"]["alternatives"][0]["transcript"])
        for word in words:
            first_s = min(
                (s for text, at, s in self.seen if text == word["word"] and abs(word["start"] - at) < 0.2),
                default=now_s,
            )
            self.heard.word_s.append(first_s - self.spoken_s(word["end"]))
        if self.close_sent_s:
            self.heard.close_s.append(now_s - self.close_sent_s)
        elif message["speech_final"] and words:
            self.heard.endpoint_s.append(now_s - self.spoken_s(words[-1]["end"]))
        self.seen = []


async def run_streams(arguments: argparse.Namespace, programs: list[Sound], streams: int) -> list[Heard]:
    """So many streams, started over two seconds."""
    rng = random.Random(streams)
    url = f"{arguments.url}/v1/listen?encoding=linear16&sample_rate={RATE}&interim_results=true"
    now_s = time.monotonic() + 0.5
    clients = [
        Client(url, number % len(programs), programs[number % len(programs)], arguments.chunk_ms, start_s)
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
    told: dict[str, dict[str, float]] = {}
    for name in HISTOGRAMS:
        counts = [
            (b, n - (before[name][at][1] if before[name] else 0)) for at, (b, n) in enumerate(after[name])
        ]
        if counts and counts[-1][1]:
            told[name] = {f"p{p}": round(within(counts, p / 100), 4) for p in (50, 95, 99)}
    return told


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


def summary(heard: Sequence[Heard], server: dict[str, dict[str, float]]) -> dict[str, Any]:
    """One object with everything that was felt."""

    def all_of(name: str) -> list[float]:
        return [value for each in heard for value in getattr(each, name)]

    return {
        "streams": len(heard),
        "failed": sum(bool(each.error) for each in heard),
        "errors": sorted({each.error for each in heard if each.error})[:5],
        "finals": sum(len(each.finals) for each in heard),
        "client_s": {
            "sound_to_result": percentiles(all_of("result_lag_s")),
            "first_partial": percentiles(all_of("first_partial_s")),
            "word": percentiles(all_of("word_s")),
            "speech_end_to_final": percentiles(all_of("endpoint_s")),
            "close_to_last_final": percentiles([max(each.close_s) for each in heard if each.close_s]),
        },
        "server_s": server,
    }


def in_time(result: dict[str, Any], limit_s: float) -> bool:
    """Nobody failed, and results follow the sound."""
    lag = result["client_s"]["sound_to_result"]
    return not result["failed"] and bool(lag) and lag["p95"] <= limit_s


def check_finals(
    heard: Sequence[Heard], programs: list[Sound], model: str, language_model: str
) -> dict[str, int]:
    """Every final against the same model, windows and decoder in a plain loop on this thread."""
    from acoustic.runtime.backend import open_backend
    from acoustic.windows import with_hop
    from service.core.events import Final
    from service.core.stream_settings import StreamSettings
    from service.scheduling.decode_worker import Desk
    from tests.core.plain_loop import transcribe

    backend = open_backend(model)
    desk = Desk(backend.config.alphabet, None if language_model == "none" else language_model)
    plan = with_hop(backend.config, backend.plan, 0.64)
    expected: dict[int, list[str]] = {}
    for number in sorted({each.program for each in heard}):
        samples = (programs[number].astype(np.float32) / 32768)[None]
        events = transcribe(
            lambda w: backend.forward([w])[0], samples, StreamSettings(), backend.config, plan, desk
        )
        expected[number] = [event.text for event in events if isinstance(event, Final)]
    same = [each.finals == expected[each.program] for each in heard]
    for each, equal in zip(heard, same, strict=True):
        if not equal and not each.error:
            print(f"differs: {each.finals}\n    from {expected[each.program]}", file=sys.stderr)
    return {"streams_checked": len(same), "streams_equal": sum(same)}


def ramps(most: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if scale * factor > most:
                return
            yield scale * factor
        scale *= 10


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="ws://127.0.0.1:8765")
    parser.add_argument("--audio", type=Path, nargs="+", required=True, help="files or folders of speech")
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="of sound a stream, at least")
    parser.add_argument("--programs", type=int, default=20, help="different pieces of sound")
    parser.add_argument("--chunk-ms", type=int, default=100)
    parser.add_argument(
        "--ramp", type=int, metavar="MOST", help="more and more streams up to MOST, then bisect"
    )
    parser.add_argument("--limit-s", type=float, default=2.5, help="p95 from sound to result that is in time")
    parser.add_argument("--check", metavar="MODEL", help="compare every final with the plain loop")
    parser.add_argument("--language-model", default="shipped", help="of the server, for --check")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    programs = read_programs(arguments.audio, arguments.programs, arguments.seconds)

    def once(streams: int) -> dict[str, Any]:
        before = scrape(arguments.url)
        heard = asyncio.run(run_streams(arguments, programs, streams))
        result = summary(heard, server_percentiles(before, scrape(arguments.url)))
        if arguments.check:
            result["check"] = check_finals(heard, programs, arguments.check, arguments.language_model)
        print(json.dumps(result), file=sys.stdout if arguments.json and not arguments.ramp else sys.stderr)
        return result

    if not arguments.ramp:
        result = once(arguments.streams)
        if not arguments.json:
            print(json.dumps(result, indent=2))
        return 0 if in_time(result, arguments.limit_s) else 1
    good, bad = 0, arguments.ramp + 1
    for streams in ramps(arguments.ramp):
        if not in_time(once(streams), arguments.limit_s):
            bad = streams
            break
        good = streams
    while bad - good > max(1, good // 10):
        middle = (good + bad) // 2
        if in_time(once(middle), arguments.limit_s):
            good = middle
        else:
            bad = middle
    print(json.dumps({"most_streams_in_time": good, "limit_s": arguments.limit_s}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
