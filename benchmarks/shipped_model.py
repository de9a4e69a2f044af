"""WER and speed of the shipped model on all test sets, with noise, telephone bandwidth and level changes.

    python -m benchmarks.shipped_model SPEECH --noise NOISE [--compare quartznet15x5-en] [--limit N]

All audio is streamed. WER is measured greedy, with beam search and the n-gram, and rescored (--language selects another
language model); also how many streams differ from the transcript of the complete recording, the speed on one core, and
the words recognized in noise without speech. --compare runs other models on the same audio. Result:
`shipped_model.json`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch

from acoustic import catalogue
from acoustic.features.framing import Samples
from acoustic.runtime import Backend, open_backend, stream_log_probs
from acoustic.windows import LogProbs
from benchmarks.provenance import provenance
from lm.decoders import Decoder, SearchSettings, open_decoder
from lm.language_model import LanguageModel
from lm.score import ErrorCounts, word_errors
from lm.text.normalize import normalize
from service.audio.files import read_mono
from service.audio.resample import Resampler
from service.commands.evaluate import recordings
from service.scheduling.device import alphabet_and_search

RATE = 16_000
SETS = ("dev", "test-clean", "test-voices", "test-noisy", "test-accented", "an4-test")
BLOCKS_PER_HOUR = 12
Change = Callable[[Samples], Samples]


@dataclass
class ConditionScore:
    """The results of one model under one condition."""

    greedy: ErrorCounts = field(default_factory=ErrorCounts)
    beam: ErrorCounts = field(default_factory=ErrorCounts)
    rescored: ErrorCounts = field(default_factory=ErrorCounts)
    differing: int = 0
    clips: int = 0
    audio_s: float = 0.0
    cpu_s: float = 0.0
    rescored_cpu_s: float = 0.0

    def row(self) -> dict[str, Any]:
        """For the result file."""
        rescored = (
            {
                "rescored": round(self.rescored.rate, 4),
                "times_real_time_rescored": round(self.audio_s / max(self.rescored_cpu_s, 1e-9), 1),
            }
            if self.rescored.words
            else {}
        )
        return {
            "clips": self.clips,
            "words": self.greedy.words,
            "greedy": round(self.greedy.rate, 4),
            "beam": round(self.beam.rate, 4),
            **rescored,
            "streams_differing": self.differing,
            "times_real_time": round(self.audio_s / max(self.cpu_s, 1e-9), 1),
        }


@dataclass
class Candidate:
    """A model with its decoders and results."""

    backend: Backend
    greedy: Decoder
    beam: Decoder
    search: SearchSettings
    rescored: Decoder | None = None
    conditions: dict[str, ConditionScore] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, language: LanguageModel) -> "Candidate":
        """The model as it is served, in the fastest precision that it supports."""
        backend = open_backend(name, "cpu", None)
        alphabet, search = alphabet_and_search(name)
        greedy, beam = open_decoder("greedy", alphabet), open_decoder("beam", alphabet, language.ngram)
        rescored = language.decoder("beam", alphabet) if language.rescoring else None
        return cls(backend, greedy, beam, search, rescored)

    def transcribe(self, condition: str, audio: Samples, reference: str) -> None:
        """Add one recording to a condition."""
        score = self.conditions.setdefault(condition, ConditionScore())
        start = time.process_time()
        log_probs = stream_log_probs(self.backend, audio)
        acoustic_s = time.process_time() - start
        text, beam_s = self._timed_decode(self.beam, log_probs)
        score.cpu_s += acoustic_s + beam_s
        score.beam += word_errors(reference, text)
        greedy_text = _decode(self.greedy, log_probs)
        score.greedy += word_errors(reference, greedy_text)
        if self.rescored:
            text, rescored_s = self._timed_decode(self.rescored, log_probs)
            score.rescored += word_errors(reference, text)
            score.rescored_cpu_s += acoustic_s + rescored_s
        score.differing += greedy_text != _decode(self.greedy, self.backend.recording_log_probs(audio))
        score.clips += 1
        score.audio_s += len(audio) / RATE

    def _timed_decode(self, decoder: Decoder, log_probs: LogProbs) -> tuple[str, float]:
        start = time.process_time()
        text = _decode(decoder, log_probs, self.search)
        return text, time.process_time() - start


def _decode(decoder: Decoder, log_probs: LogProbs, search: SearchSettings | None = None) -> str:
    utterance = decoder.start(search or SearchSettings())
    utterance.push(log_probs)
    return utterance.finish()[0].text


def load_noise(folder: Path, split: str = "test") -> Samples:
    """All clips of a split, concatenated, each normalized to an RMS of 1."""
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    clips = [read_mono(folder / line["audio"]) for line in lines if line.get("split") == split]
    return np.concatenate([clip / max(float(np.sqrt(np.mean(clip**2))), 1e-6) for clip in clips])


def add_noise(noise: Samples, snr_db: float, seed: int) -> Change:
    """Adds noise at this signal-to-noise ratio, a random section of it per clip."""
    rng = np.random.default_rng(seed)

    def change(audio: Samples) -> Samples:
        start = int(rng.integers(0, max(1, len(noise) - len(audio))))
        level = np.sqrt(np.mean(audio**2)) * 10 ** (-snr_db / 20)
        section = np.resize(noise[start : start + len(audio)], len(audio))
        return np.asarray(audio + level * section, np.float32)

    return change


def telephone(audio: Samples) -> Samples:
    """Removes everything above 4 kHz."""
    return np.asarray(soxr.resample(soxr.resample(audio, RATE, 8000), 8000, RATE), np.float32)


def change_level(gain_db: float) -> Change:
    """Applies a gain, clips as a converter does, and declips as the service does."""

    def change(audio: Samples) -> Samples:
        clipped = np.clip(audio * 10 ** (gain_db / 20), -1.0, 1.0).astype(np.float32)
        return Resampler(RATE, 1).push(clipped[None], last=True)[0]

    return change


def blocks_without_speech(noise: Samples, hours: float) -> Iterator[Samples]:
    """Alternating blocks of five minutes of near silence and of noise, at random levels."""
    rng = np.random.default_rng(0)
    for number in range(max(1, round(hours * BLOCKS_PER_HOUR))):
        count = 300 * RATE
        if number % 2 == 0:
            yield (rng.normal(size=count) * 10 ** rng.uniform(-5, -3)).astype(np.float32)
        else:
            start = int(rng.integers(0, max(1, len(noise) - count)))
            section = np.resize(noise[start : start + count], count)
            yield (section * 10 ** rng.uniform(-3, -1)).astype(np.float32)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run every model under every condition."""
    names = [arguments.model or catalogue.default_name(), *arguments.compare]
    language = LanguageModel.load(arguments.language)
    candidates = {name: Candidate.open(name, language) for name in names}
    for name in SETS:
        folder = arguments.speech / name
        if (folder / "manifest.jsonl").is_file():
            _transcribe_all(candidates, name, folder, arguments.limit, None)
    changes: dict[str, Change] = {
        "8 kHz band": telephone,
        "+12 dB": change_level(12.0),
        "-12 dB": change_level(-12.0),
    }
    noise = load_noise(arguments.noise) if arguments.noise else None
    if noise is not None:
        changes["noise at 10 dB"] = add_noise(noise, 10.0, 0)
    dev, limit = arguments.speech / "dev", arguments.changed_limit
    _transcribe_all(candidates, "dev, same clips unchanged", dev, limit, None)
    for condition, change in changes.items():
        _transcribe_all(candidates, f"dev, {condition}", dev, limit, change)
    words_per_hour: dict[str, float] = {}
    if noise is not None:
        for name, candidate in candidates.items():
            decoder = candidate.rescored or candidate.beam
            counts = [
                len(_decode(decoder, stream_log_probs(candidate.backend, audio), candidate.search).split())
                for audio in blocks_without_speech(noise, arguments.noise_hours)
            ]
            words_per_hour[name] = sum(counts) / (len(counts) / BLOCKS_PER_HOUR)
    return {
        "conditions": {
            name: {condition: score.row() for condition, score in candidate.conditions.items()}
            for name, candidate in candidates.items()
        },
        "words_per_hour_without_speech": words_per_hour,
        "language": arguments.language,
        "note": arguments.note,
        **provenance(),
    }


def _transcribe_all(
    candidates: dict[str, Candidate], condition: str, folder: Path, limit: int | None, change: Change | None
) -> None:
    for line in recordings(folder, limit):
        audio = read_mono(line["folder"] / line["audio"])
        audio = change(audio) if change else audio
        for candidate in candidates.values():
            candidate.transcribe(condition, audio, normalize(line["text"]))
    progress = ", ".join(
        f"{name} {scores[condition].greedy.rate:.1%} greedy, {scores[condition].beam.rate:.1%} beam"
        for name, scores in ((name, candidate.conditions) for name, candidate in candidates.items())
    )
    print(f"{condition}: {progress}", file=sys.stderr)


def markdown(result: dict[str, Any]) -> str:
    """WER greedy / beam / rescored, differing streams, and speed with the beam / rescored, by condition."""
    models = list(result["conditions"])
    lines = [
        "| condition | clips | " + " | ".join(f"{name} | differ | x real time" for name in models) + " |",
        "|---|--:|" + "--:|--:|--:|" * len(models),
    ]
    for condition, first in result["conditions"][models[0]].items():
        cells = []
        for name in models:
            row = result["conditions"][name][condition]
            rates = (row[key] for key in ("greedy", "beam", "rescored") if key in row)
            speeds = (row[key] for key in ("times_real_time", "times_real_time_rescored") if key in row)
            cells.append(
                f"{' / '.join(f'{100 * rate:.1f}' for rate in rates)} % | "
                f"{row['streams_differing']} | {' / '.join(f'{speed:.0f}' for speed in speeds)}"
            )
        lines.append(f"| {condition} | {first['clips']} | " + " | ".join(cells) + " |")
    words = result["words_per_hour_without_speech"]
    if words:
        counts = ", ".join(f"{name} {count:.0f}" for name, count in words.items())
        lines += ["", f"Words per hour of silence and noise: {counts}."]
    return "\n".join(lines)


def main() -> int:
    """Measure, print and save the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("speech", type=Path, help="folder with the test folders")
    parser.add_argument("--noise", type=Path, help="folder of noise with a manifest")
    parser.add_argument("--model", help="default: the shipped model")
    parser.add_argument("--compare", nargs="*", default=[], help="other models to run on the same audio")
    parser.add_argument(
        "--language", default="shipped", help="KenLM file or output of `silica lm rescore` (default: shipped)"
    )
    parser.add_argument("--limit", type=int, help="clips per folder (default: all)")
    parser.add_argument(
        "--changed-limit", type=int, default=100, help="clips of dev with noise, telephone band and levels"
    )
    parser.add_argument("--noise-hours", type=float, default=1.0, help="hours without speech")
    parser.add_argument("--note", default="", help="conditions of the run, saved with the result")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "shipped_model.json").write_text(json.dumps(result, indent=1) + "\n")
    print(markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
