"""How fast the beam search is, beside the decoders others use: same log-probabilities, same language model, one run.

    python -m benchmarks.decoding --log-probs FOLDER --manifest MANIFEST [--lm FILE] [--clips 40] [--out FOLDER]

FOLDER holds one `.npy` of `[frames, classes]` log-probabilities for each clip of the manifest; with `--model NAME`
what is missing is computed first. The decoders take turns over the clips, several rounds; of each clip the least
processor time of this thread counts, for whatever else runs can only add to it. Results go to `decoding.json` and
`decoding.md`.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import Flashlight
from lm.decoders import Hotword, SearchSettings, open_decoder
from lm.ngram.trie import NGram
from lm.score import ErrorCounts, word_errors
from lm.search.beam import BeamDecoder, BeamUtterance, warm_up

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"
OUTPUT_S = 0.02
WIDTHS = (16, 64, 128)
TEMPERATURES = {"peaky": 1.0, "soft": 2.0, "very soft": 3.0}
HOTWORDS = (0, 10, 100, 200)
HOTWORD_WEIGHTS = (0.0, 2.0, 5.0, 10.0)
ROUNDS = 3
Frames = NDArray[np.float32]
Decode = Callable[[Frames, SearchSettings], str]


class Tally:
    """What one decoder wrote of each clip, and the least processor time it needed for that."""

    def __init__(self, clips: int) -> None:
        self.heard = [""] * clips
        self.min_s = [math.inf] * clips

    def run(self, decode: Decode, clips: list[tuple[Frames, str]], settings: SearchSettings) -> None:
        for place, (frames, _) in enumerate(clips):
            begin = time.thread_time()
            self.heard[place] = decode(frames, settings)
            self.min_s[place] = min(self.min_s[place], time.thread_time() - begin)

    def row(self, clips: list[tuple[Frames, str]]) -> dict[str, float]:
        audio_s = sum(len(frames) for frames, _ in clips) * OUTPUT_S
        errors = ErrorCounts()
        for (_, text), heard in zip(clips, self.heard, strict=True):
            errors += word_errors(text, heard)
        return {
            "times_real_time": round(audio_s / sum(self.min_s), 1),
            "wer_percent": round(100 * errors.rate, 2),
            "audio_s": round(audio_s, 1),
        }


def softened(frames: Frames, temperature: float) -> Frames:
    scaled = frames.astype(np.float64) / temperature
    return (scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)).astype(np.float32)


def bits_per_frame(clips: list[Frames]) -> float:
    frames = np.concatenate(clips).astype(np.float64)
    return float(-(np.exp(frames) * frames).sum(axis=1).mean() / math.log(2))


def load(arguments: argparse.Namespace) -> list[tuple[Frames, str]]:
    """Evenly chosen clips of the manifest and their reference texts."""
    rows = [json.loads(line) for line in arguments.manifest.read_text().splitlines()]
    rows = [row for row in rows if row.get("text")]
    rows = rows[:: max(1, len(rows) // arguments.clips)][: arguments.clips]
    backend = None
    clips = []
    for row in rows:
        stored = arguments.log_probs / (Path(row["audio"]).stem + ".npy")
        if not stored.exists():
            if not arguments.model:
                sys.exit(f"{stored} is missing: give --model to compute it")
            if backend is None:
                from acoustic.runtime import open_backend

                backend = open_backend(arguments.model)
            import soundfile

            samples, _ = soundfile.read(arguments.manifest.parent / row["audio"], dtype="float32")
            arguments.log_probs.mkdir(parents=True, exist_ok=True)
            np.save(stored, np.asarray(backend.whole(samples), np.float32))
        clips.append((np.load(stored), row["text"]))
    return clips


def load_all(arguments: argparse.Namespace) -> list[tuple[Frames, str]]:
    """Every clip whose log-probabilities are stored."""
    rows = [json.loads(line) for line in arguments.manifest.read_text().splitlines()]
    stored = [
        (arguments.log_probs / (Path(row["audio"]).stem + ".npy"), row["text"])
        for row in rows
        if row.get("text")
    ]
    return [(np.load(path), text) for path, text in stored if path.exists()]


def compare(clips: list[tuple[Frames, str]], ngram: NGram, seconds: float) -> list[dict[str, Any]]:
    """Every decoder over the same clips; the slow ones decide how many, by `seconds` of audio for soft frames."""
    ours = open_decoder("beam", ALPHABET, ngram)
    slow = open_decoder("pyctcdecode", ALPHABET, ngram)
    rival = Flashlight(ALPHABET, ngram)

    def streaming(frames: Frames, settings: SearchSettings) -> str:
        utterance = ours.start(settings)
        for first in range(0, len(frames), 32):  # hops of 0.64 s, as the service pushes them
            utterance.push(frames[first : first + 32])
        return utterance.finish()[0].text

    def with_library(frames: Frames, settings: SearchSettings) -> str:
        utterance = slow.start(settings)
        utterance.push(frames)
        return utterance.finish()[0].text

    decoders: dict[str, Decode] = {
        "silica": streaming,
        "pyctcdecode": with_library,
        "flashlight-text": rival.text,
    }
    table = []
    for kind, temperature in TEMPERATURES.items():
        chosen, audio_s = [], 0.0
        for frames, text in clips:
            if temperature > 1.0 and audio_s >= seconds:
                break
            chosen.append((softened(frames, temperature) if temperature > 1.0 else frames, text))
            audio_s += len(frames) * OUTPUT_S
        for width in WIDTHS:
            settings = SearchSettings(width=width)
            for decode in decoders.values():
                decode(chosen[0][0], settings)  # caches filled, pages mapped
            tallies = {name: Tally(len(chosen)) for name in decoders}
            for name, decode in list(decoders.items()) * ROUNDS:
                tallies[name].run(decode, chosen, settings)
            row: dict[str, Any] = {
                "frames": kind,
                "temperature": temperature,
                "bits_per_frame": round(bits_per_frame([frames for frames, _ in chosen]), 2),
                "width": width,
                **{name: tally.row(chosen) for name, tally in tallies.items()},
            }
            for name in ("pyctcdecode", "flashlight-text"):
                row[f"faster_than_{name}"] = round(
                    row["silica"]["times_real_time"] / row[name]["times_real_time"], 1
                )
            table.append(row)
            print(json.dumps(row), file=sys.stderr)
    return table


def age(clips: list[tuple[Frames, str]], ngram: NGram, minutes: int = 30) -> dict[str, Any]:
    """Unbroken speech: what each minute costs and what the state holds."""
    frames = np.concatenate([frames for frames, _ in clips])
    frames = softened(np.tile(frames, (math.ceil(minutes * 3000 / len(frames)), 1))[: minutes * 3000], 2.0)
    utterance = BeamDecoder(ALPHABET, ngram).start()
    costs, held = [], []
    for minute in range(minutes):
        begin = time.thread_time()
        for first in range(minute * 3000, (minute + 1) * 3000, 32):
            utterance.push(frames[first : min(first + 32, (minute + 1) * 3000)])
        costs.append(time.thread_time() - begin)
        held.append(utterance.state_bytes)
    third = minutes // 3
    return {
        "minutes": minutes,
        "first_third_ms_a_minute": round(1000 * float(np.mean(costs[:third])), 2),
        "last_third_ms_a_minute": round(1000 * float(np.mean(costs[-third:])), 2),
        "state_kib_after_a_third": held[third] // 1024,
        "state_kib_at_the_end": held[-1] // 1024,
    }


def hotwords(clips: list[tuple[Frames, str]], ngram: NGram) -> list[dict[str, Any]]:
    """What phrases cost: words of the model's own vocabulary, two to a phrase."""
    words = [word.decode() for word in ngram.vocabulary()[1:].tolist()]
    words = [word for word in words if len(word) > 4 and set(word) <= set(ALPHABET[1:])]
    decoder = BeamDecoder(ALPHABET, ngram)
    table = []
    for count in HOTWORDS:
        phrases = tuple(Hotword(" ".join(words[2 * index : 2 * index + 2]), 5.0) for index in range(count))
        settings = SearchSettings(hotwords=phrases)
        decoder.start(settings)
        begin = time.thread_time()
        for frames, _ in clips:
            utterance: BeamUtterance = decoder.start(settings)
            utterance.push(frames)
            utterance.finish()
        spent = time.thread_time() - begin
        audio_s = sum(len(frames) for frames, _ in clips) * OUTPUT_S
        table.append({"hotwords": count, "times_real_time": round(audio_s / spent)})
    return table


def hotword_recall(clips: list[tuple[Frames, str]], ngram: NGram) -> list[dict[str, Any]]:
    """Words that are said but that the language model never saw, asked for all at once with ever more weight."""
    said = Counter(word for _, text in clips for word in text.split())
    unknown = [word for word in said if word not in ngram]
    decoder = BeamDecoder(ALPHABET, ngram)
    table = []
    for weight in HOTWORD_WEIGHTS:
        settings = SearchSettings(hotwords=tuple(Hotword(word, weight) for word in unknown) if weight else ())
        found = invented = 0
        errors = ErrorCounts()
        for frames, text in clips:
            utterance = decoder.start(settings)
            utterance.push(frames)
            heard = utterance.finish()[0].text
            errors += word_errors(text, heard)
            wanted, written = Counter(text.split()), Counter(heard.split())
            found += sum(min(wanted[word], written[word]) for word in unknown)
            invented += sum(max(0, written[word] - wanted[word]) for word in unknown)
        table.append(
            {
                "weight": weight,
                "hotwords": len(unknown),
                "said": sum(said[word] for word in unknown),
                "found": found,
                "invented": invented,
                "wer_percent": round(100 * errors.rate, 2),
            }
        )
    return table


def one_push(clips: list[tuple[Frames, str]], ngram: NGram) -> dict[str, float]:
    """What one hop (0.64 s) costs on very soft frames, all of it without the interpreter's lock but the last figure."""
    frames = softened(np.concatenate([frames for frames, _ in clips])[:3000], 3.0)
    utterance = BeamDecoder(ALPHABET, ngram).start(SearchSettings(width=128))
    pushes, reads = [], []
    for first in range(0, len(frames), 32):
        begin = time.thread_time()
        utterance.push(frames[first : first + 32])
        middle = time.thread_time()
        utterance.best()
        pushes.append(middle - begin)
        reads.append(time.thread_time() - middle)
    empty = []
    for _ in range(1000):
        begin = time.thread_time()
        utterance.push(frames[:0])
        empty.append(time.thread_time() - begin)
    return {
        "push_ms_median": round(1000 * float(np.median(pushes)), 3),
        "push_ms_largest": round(1000 * float(np.max(pushes)), 3),
        "best_ms_median": round(1000 * float(np.median(reads)), 3),
        "push_with_the_lock_held_ms": round(1000 * float(np.median(empty)), 4),
    }


def markdown(results: dict[str, Any]) -> str:
    lines = [
        f"Measured {results['date']} at commit {results['commit']} on {results['machine']} by benchmarks/decoding.py: "
        f"{results['clips']} clips, {results['language_model']}; of each clip the least processor time of {ROUNDS} "
        "rounds, one thread.",
        "",
        "| frames | bits a frame | width | Silica | pyctcdecode 0.5.0 | flashlight-text | gain | gain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["comparison"]:
        cells = [
            f"{row[name]['times_real_time']:,.0f} × ({row[name]['wer_percent']:.2f} %)"
            for name in ("silica", "pyctcdecode", "flashlight-text")
        ]
        lines.append(
            f"| {row['frames']} | {row['bits_per_frame']} | {row['width']} | {' | '.join(cells)} "
            f"| {row['faster_than_pyctcdecode']} × | {row['faster_than_flashlight-text']} × |"
        )
    aged, push, recall = results["age"], results["one_push"], results["hotword_recall"]
    lines += [
        "",
        "Speed is times real time, in brackets the word error rate on the same clips.",
        "",
        f"Unbroken speech, {aged['minutes']} minutes in one utterance, soft frames, width 64: "
        f"{aged['first_third_ms_a_minute']} ms a minute in the first third, {aged['last_third_ms_a_minute']} ms in "
        f"the last; state {aged['state_kib_after_a_third']} KiB after a third, {aged['state_kib_at_the_end']} KiB at "
        "the end.",
        "",
        "Hotwords, peaky frames, width 64: "
        + ", ".join(f"{row['hotwords']}: {row['times_real_time']:,} ×" for row in results["hotwords"])
        + ".",
        "",
        f"Of {recall[0]['said']} words that were said and that the language model never saw ({recall[0]['hotwords']} "
        "different ones), found when all are hotwords: "
        + ", ".join(
            f"weight {row['weight']:.0f}: {row['found']} ({row['invented']} invented, WER {row['wer_percent']:.2f} %)"
            for row in recall
        )
        + ".",
        "",
        f"One push of 0.64 s, very soft frames, width 128: {push['push_ms_median']} ms (largest "
        f"{push['push_ms_largest']}), without the interpreter's lock but for {push['push_with_the_lock_held_ms']} ms; "
        f"reading the best hypothesis {push['best_ms_median']} ms.",
        "",
    ]
    return "\n".join(lines)


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [
            line.split(":")[1].strip()
            for line in information.read_text().splitlines()
            if "model name" in line
        ]
        cpu = names[0] if names else cpu
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log-probs", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--model", help="computes log-probabilities that are missing")
    parser.add_argument("--lm", type=Path, help="a KenLM trie; default: the one in the box")
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument(
        "--soft-seconds", type=float, default=60.0, help="audio for the slow decoders on soft frames"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    ngram = NGram.load(arguments.lm) if arguments.lm else NGram.shipped()
    if ngram is None:
        sys.exit("there is no language model in the box: give --lm")
    clips = load(arguments)
    warm_up()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": machine(),
        "clips": len(clips),
        "language_model": f"{ngram.path.stem} (order {ngram.order}, {sum(ngram.counts):,} n-grams)",
        "comparison": compare(clips, ngram, arguments.soft_seconds),
        "age": age(clips, ngram),
        "hotwords": hotwords(clips, ngram),
        "hotword_recall": hotword_recall(load_all(arguments), ngram),
        "one_push": one_push(clips, ngram),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "decoding.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "decoding.md").write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
