"""Speed and WER of the beam search against pyctcdecode and flashlight-text, on the same inputs and language model.

    python -m benchmarks.decoding --log-probs FOLDER --manifest MANIFEST [--lm FILE] [--clips 40] [--out FOLDER]

FOLDER holds one `.npy` of `[frames, classes]` log-probabilities per clip of the manifest; `--model NAME` computes the
missing ones. The decoders alternate over several rounds; the minimum processor time per clip counts, because other
load can only add to it. Also measures long utterances, hotwords, and one push. Results: `decoding.json`.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import Flashlight
from benchmarks.provenance import provenance
from lm.decoders import Hotword, SearchSettings, open_decoder
from lm.ngram.trie import NGram
from lm.score import ErrorCounts, word_errors
from lm.search.beam import BeamDecoder, BeamUtterance, warm_up

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"
OUTPUT_S = 0.02
HOP_FRAMES = 32
"""0.64 s, the service's default hop."""
WIDTHS = (16, 64, 128)
TEMPERATURES = {"peaky": 1.0, "soft": 2.0, "very soft": 3.0}
HOTWORDS = (0, 10, 100, 200)
HOTWORD_WEIGHTS = (0.0, 2.0, 5.0, 10.0)
ROUNDS = 3
BASELINES = ("pyctcdecode", "flashlight-text")
Frames = NDArray[np.float32]
Decode = Callable[[Frames, SearchSettings], str]


class DecoderRun:
    """The transcripts of one decoder, and its minimum processor time per clip."""

    def __init__(self, clips: int) -> None:
        self.texts = [""] * clips
        self.min_s = [math.inf] * clips

    def run(self, decode: Decode, clips: list[tuple[Frames, str]], settings: SearchSettings) -> None:
        """Decode every clip once."""
        for index, (frames, _) in enumerate(clips):
            start = time.thread_time()
            self.texts[index] = decode(frames, settings)
            self.min_s[index] = min(self.min_s[index], time.thread_time() - start)

    def row(self, clips: list[tuple[Frames, str]]) -> dict[str, float]:
        """Speed and WER."""
        audio_s = sum(len(frames) for frames, _ in clips) * OUTPUT_S
        errors = ErrorCounts()
        for (_, reference), text in zip(clips, self.texts, strict=True):
            errors += word_errors(reference, text)
        return {
            "times_real_time": round(audio_s / sum(self.min_s), 1),
            "wer_percent": round(100 * errors.rate, 2),
            "audio_s": round(audio_s, 1),
        }


def soften(frames: Frames, temperature: float) -> Frames:
    """The log-softmax of the frames divided by a temperature: the outputs of a less certain model."""
    scaled = frames.astype(np.float64) / temperature
    return (scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)).astype(np.float32)


def bits_per_frame(clips: list[Frames]) -> float:
    """The mean entropy of a frame."""
    frames = np.concatenate(clips).astype(np.float64)
    return float(-(np.exp(frames) * frames).sum(axis=1).mean() / math.log(2))


def load(arguments: argparse.Namespace) -> list[tuple[Frames, str]]:
    """Evenly spaced clips of the manifest with their reference texts."""
    rows = [json.loads(line) for line in arguments.manifest.read_text().splitlines()]
    rows = [row for row in rows if row.get("text")]
    rows = rows[:: max(1, len(rows) // arguments.clips)][: arguments.clips]
    backend = None
    clips = []
    for row in rows:
        stored = arguments.log_probs / (Path(row["audio"]).stem + ".npy")
        if not stored.exists():
            if not arguments.model:
                sys.exit(f"{stored} is missing: use --model to compute it")
            if backend is None:
                from acoustic.runtime import open_backend

                backend = open_backend(arguments.model)
            import soundfile

            samples, _ = soundfile.read(arguments.manifest.parent / row["audio"], dtype="float32")
            arguments.log_probs.mkdir(parents=True, exist_ok=True)
            np.save(stored, np.asarray(backend.recording_log_probs(samples), np.float32))
        clips.append((np.load(stored), row["text"]))
    return clips


def load_all(arguments: argparse.Namespace) -> list[tuple[Frames, str]]:
    """All clips whose log-probabilities are stored."""
    rows = [json.loads(line) for line in arguments.manifest.read_text().splitlines()]
    stored = [
        (arguments.log_probs / (Path(row["audio"]).stem + ".npy"), row["text"])
        for row in rows
        if row.get("text")
    ]
    return [(np.load(path), text) for path, text in stored if path.exists()]


def compare(clips: list[tuple[Frames, str]], ngram: NGram, soft_s: float) -> list[dict[str, Any]]:
    """Runs every decoder; softened frames are limited to `soft_s` seconds of audio, because the baselines are slow."""
    beam = open_decoder("beam", ALPHABET, ngram)
    baseline = open_decoder("pyctcdecode", ALPHABET, ngram)
    flashlight = Flashlight(ALPHABET, ngram)

    def silica(frames: Frames, settings: SearchSettings) -> str:
        utterance = beam.start(settings)
        for first in range(0, len(frames), HOP_FRAMES):
            utterance.push(frames[first : first + HOP_FRAMES])
        return utterance.finish()[0].text

    def pyctcdecode(frames: Frames, settings: SearchSettings) -> str:
        utterance = baseline.start(settings)
        utterance.push(frames)
        return utterance.finish()[0].text

    decoders: dict[str, Decode] = {
        "silica": silica,
        "pyctcdecode": pyctcdecode,
        "flashlight-text": flashlight.transcribe,
    }
    table = []
    for name, temperature in TEMPERATURES.items():
        chosen, audio_s = [], 0.0
        for frames, text in clips:
            if temperature > 1.0 and audio_s >= soft_s:
                break
            chosen.append((soften(frames, temperature) if temperature > 1.0 else frames, text))
            audio_s += len(frames) * OUTPUT_S
        for width in WIDTHS:
            settings = SearchSettings(width=width)
            for decode in decoders.values():
                decode(chosen[0][0], settings)  # warm-up
            runs = {decoder: DecoderRun(len(chosen)) for decoder in decoders}
            for decoder, decode in list(decoders.items()) * ROUNDS:
                runs[decoder].run(decode, chosen, settings)
            row: dict[str, Any] = {
                "frames": name,
                "temperature": temperature,
                "bits_per_frame": round(bits_per_frame([frames for frames, _ in chosen]), 2),
                "width": width,
                **{decoder: run.row(chosen) for decoder, run in runs.items()},
            }
            for other in BASELINES:
                row[f"speedup_over_{other}"] = round(
                    row["silica"]["times_real_time"] / row[other]["times_real_time"], 1
                )
            table.append(row)
            print(json.dumps(row), file=sys.stderr)
    return table


def long_utterance(clips: list[tuple[Frames, str]], ngram: NGram, minutes: int = 30) -> dict[str, Any]:
    """Time per minute and size of the state over one long utterance."""
    frames = np.concatenate([frames for frames, _ in clips])
    frames = soften(np.tile(frames, (math.ceil(minutes * 3000 / len(frames)), 1))[: minutes * 3000], 2.0)
    utterance = BeamDecoder(ALPHABET, ngram).start()
    costs, state_bytes = [], []
    for minute in range(minutes):
        start = time.thread_time()
        for first in range(minute * 3000, (minute + 1) * 3000, HOP_FRAMES):
            utterance.push(frames[first : min(first + HOP_FRAMES, (minute + 1) * 3000)])
        costs.append(time.thread_time() - start)
        state_bytes.append(utterance.state_bytes)
    third = minutes // 3
    return {
        "minutes": minutes,
        "first_third_ms_per_minute": round(1000 * float(np.mean(costs[:third])), 2),
        "last_third_ms_per_minute": round(1000 * float(np.mean(costs[-third:])), 2),
        "state_kib_after_first_third": state_bytes[third] // 1024,
        "state_kib_at_end": state_bytes[-1] // 1024,
    }


def hotword_speed(clips: list[tuple[Frames, str]], ngram: NGram) -> list[dict[str, Any]]:
    """Speed by number of hotwords: phrases of two words from the vocabulary."""
    words = [word.decode() for word in ngram.vocabulary()[1:].tolist()]
    words = [word for word in words if len(word) > 4 and set(word) <= set(ALPHABET[1:])]
    decoder = BeamDecoder(ALPHABET, ngram)
    table = []
    for count in HOTWORDS:
        phrases = tuple(Hotword(" ".join(words[2 * index : 2 * index + 2]), 5.0) for index in range(count))
        settings = SearchSettings(hotwords=phrases)
        decoder.start(settings)
        start = time.thread_time()
        for frames, _ in clips:
            utterance: BeamUtterance = decoder.start(settings)
            utterance.push(frames)
            utterance.finish()
        cpu_s = time.thread_time() - start
        audio_s = sum(len(frames) for frames, _ in clips) * OUTPUT_S
        table.append({"hotwords": count, "times_real_time": round(audio_s / cpu_s)})
    return table


def hotword_recall(clips: list[tuple[Frames, str]], ngram: NGram) -> list[dict[str, Any]]:
    """Recall of spoken words that are not in the language model's vocabulary, all given as hotwords, by weight."""
    spoken = Counter(word for _, text in clips for word in text.split())
    unknown = [word for word in spoken if word not in ngram]
    decoder = BeamDecoder(ALPHABET, ngram)
    table = []
    for weight in HOTWORD_WEIGHTS:
        settings = SearchSettings(hotwords=tuple(Hotword(word, weight) for word in unknown) if weight else ())
        found = inserted = 0
        errors = ErrorCounts()
        for frames, text in clips:
            utterance = decoder.start(settings)
            utterance.push(frames)
            hypothesis = utterance.finish()[0].text
            errors += word_errors(text, hypothesis)
            expected, output = Counter(text.split()), Counter(hypothesis.split())
            found += sum(min(expected[word], output[word]) for word in unknown)
            inserted += sum(max(0, output[word] - expected[word]) for word in unknown)
        table.append(
            {
                "weight": weight,
                "hotwords": len(unknown),
                "spoken": sum(spoken[word] for word in unknown),
                "found": found,
                "inserted": inserted,
                "wer_percent": round(100 * errors.rate, 2),
            }
        )
    return table


def one_push(clips: list[tuple[Frames, str]], ngram: NGram) -> dict[str, float]:
    """Time of one push of a hop with very soft frames, and how long it holds the interpreter lock (GIL)."""
    frames = soften(np.concatenate([frames for frames, _ in clips])[:3000], 3.0)
    utterance = BeamDecoder(ALPHABET, ngram).start(SearchSettings(width=128))
    pushes, reads = [], []
    for first in range(0, len(frames), HOP_FRAMES):
        start = time.thread_time()
        utterance.push(frames[first : first + HOP_FRAMES])
        pushed = time.thread_time()
        utterance.best()
        pushes.append(pushed - start)
        reads.append(time.thread_time() - pushed)
    empty = []  # a push without frames runs no compiled code, so it holds the GIL all the time
    for _ in range(1000):
        start = time.thread_time()
        utterance.push(frames[:0])
        empty.append(time.thread_time() - start)
    return {
        "push_ms_median": round(1000 * float(np.median(pushes)), 3),
        "push_ms_max": round(1000 * float(np.max(pushes)), 3),
        "best_ms_median": round(1000 * float(np.median(reads)), 3),
        "push_gil_ms": round(1000 * float(np.median(empty)), 4),
    }


def markdown(results: dict[str, Any]) -> str:
    """The comparison as a table: times real time, WER in brackets."""
    lines = [
        "| frames | bits per frame | width | Silica | pyctcdecode | flashlight-text | speedup | speedup |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["comparison"]:
        cells = [
            f"{row[name]['times_real_time']:,.0f} x ({row[name]['wer_percent']:.2f} %)"
            for name in ("silica", *BASELINES)
        ]
        cells += [f"{row[f'speedup_over_{name}']} x" for name in BASELINES]
        lines.append(f"| {row['frames']} | {row['bits_per_frame']} | {row['width']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all parts and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log-probs", type=Path, required=True, help="folder of `.npy` files")
    parser.add_argument("--manifest", type=Path, required=True, help="manifest of the clips")
    parser.add_argument("--model", help="acoustic model that computes missing log-probabilities")
    parser.add_argument("--lm", type=Path, help="KenLM trie file (default: the shipped one)")
    parser.add_argument("--clips", type=int, default=40, help="number of clips (default: %(default)s)")
    parser.add_argument("--soft-seconds", type=float, default=60.0, help="limit of audio for softened frames")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    ngram = NGram.load(arguments.lm) if arguments.lm else NGram.shipped()
    if ngram is None:
        sys.exit("no shipped language model found: use --lm")
    clips = load(arguments)
    warm_up()
    results = {
        **provenance(),
        "clips": len(clips),
        "language_model": f"{ngram.path.stem} (order {ngram.order}, {sum(ngram.counts):,} n-grams)",
        "comparison": compare(clips, ngram, arguments.soft_seconds),
        "long_utterance": long_utterance(clips, ngram),
        "hotwords": hotword_speed(clips, ngram),
        "hotword_recall": hotword_recall(load_all(arguments), ngram),
        "one_push": one_push(clips, ngram),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "decoding.json").write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))


if __name__ == "__main__":
    main()
