"""The model in the box on everything it is judged by: each test folder, noise, a telephone's band, levels, silence.

    python -m benchmarks.shipped_model ../shared/speech --noise ../shared/noise [--beside quartznet15x5-en] [--limit N]
        [--language shipped]

Word errors greedy, searched with the n-gram in the box, and with the readings ranked again, as the box does it when an
utterance ends (--language: something else than the box); all heard as streams; whether a stream writes what the whole
recording writes; how fast one core hears and searches, and ranks besides (processor time). The model named by --beside
(a teacher) hears the very same sound. Results go to `benchmarks/results/shipped_model.json` and `.md`, with date,
commit and
machine.
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
from benchmarks.acoustic import provenance
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
Change = Callable[[Samples], Samples]


@dataclass
class ConditionScore:
    """What one model made of one condition."""

    greedy: ErrorCounts = field(default_factory=ErrorCounts)
    searched: ErrorCounts = field(default_factory=ErrorCounts)
    rescored: ErrorCounts = field(default_factory=ErrorCounts)
    differing: int = 0
    clips: int = 0
    sound_s: float = 0.0
    cpu_s: float = 0.0
    ranked_s: float = 0.0

    def line(self) -> dict[str, Any]:
        """For the results."""
        rescored = (
            {
                "rescored": round(self.rescored.rate, 4),
                "times_real_time_ranked": round(self.sound_s / max(self.ranked_s, 1e-9), 1),
            }
            if self.rescored.words
            else {}
        )
        return {
            "clips": self.clips,
            "words": self.greedy.words,
            "greedy": round(self.greedy.rate, 4),
            "with_lm": round(self.searched.rate, 4),
            **rescored,
            "streams_unlike_the_whole": self.differing,
            "times_real_time": round(self.sound_s / max(self.cpu_s, 1e-9), 1),
        }


@dataclass
class Candidate:
    """A model with the decoders that it is judged by."""

    backend: Backend
    greedy: Decoder
    beam: Decoder
    search: SearchSettings
    ranked: Decoder | None = None
    conditions: dict[str, ConditionScore] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, language: LanguageModel) -> "Candidate":
        """The model as it is served: the fastest precision that it is ready for."""
        backend = open_backend(name, "cpu", None)
        alphabet, search = alphabet_and_search(name)
        greedy, beam = open_decoder("greedy", alphabet), open_decoder("beam", alphabet, language.ngram)
        ranked = language.decoder("beam", alphabet) if language.rescoring else None
        return cls(backend, greedy, beam, search, ranked)

    def transcribe(self, condition: str, sound: Samples, reference: str) -> None:
        """Add one recording to a condition."""
        hypothesis = self.conditions.setdefault(condition, ConditionScore())
        began = time.process_time()
        streamed = stream_log_probs(self.backend, sound)
        hearing_s = time.process_time() - began
        searched, searching_s = self._timed(self.beam, streamed)
        hypothesis.cpu_s += hearing_s + searching_s
        written = _words(self.greedy, streamed)
        hypothesis.greedy += word_errors(reference, written)
        hypothesis.searched += word_errors(reference, searched)
        if self.ranked:
            ranked, ranking_s = self._timed(self.ranked, streamed)
            hypothesis.rescored += word_errors(reference, ranked)
            hypothesis.ranked_s += hearing_s + ranking_s
        hypothesis.differing += written != _words(self.greedy, self.backend.recording_log_probs(sound))
        hypothesis.clips += 1
        hypothesis.sound_s += len(sound) / RATE

    def _timed(self, decoder: Decoder, log_probs: LogProbs) -> tuple[str, float]:
        began = time.process_time()
        words = _words(decoder, log_probs, self.search)
        return words, time.process_time() - began


def _words(decoder: Decoder, log_probs: LogProbs, search: SearchSettings | None = None) -> str:
    utterance = decoder.start(search or SearchSettings())
    utterance.push(log_probs)
    return utterance.finish()[0].text


def noise_bank(folder: Path, split: str = "test") -> Samples:
    """A split as one long sound, every piece at the same level."""
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    pieces = [read_mono(folder / line["audio"]) for line in lines if line.get("split") == split]
    return np.concatenate([piece / max(float(np.sqrt(np.mean(piece**2))), 1e-6) for piece in pieces])


def noisy(bank: Samples, ratio_db: float, seed: int) -> Change:
    """Noise at so many decibels below the speech, another stretch of it for every clip."""
    draw = np.random.default_rng(seed)

    def change(sound: Samples) -> Samples:
        begin = int(draw.integers(0, max(1, len(bank) - len(sound))))
        level = np.sqrt(np.mean(sound**2)) * 10 ** (-ratio_db / 20)
        return np.asarray(sound + level * np.resize(bank[begin : begin + len(sound)], len(sound)), np.float32)

    return change


def telephone(sound: Samples) -> Samples:
    """Nothing above 4 kHz."""
    return np.asarray(soxr.resample(soxr.resample(sound, RATE, 8000), 8000, RATE), np.float32)


def at_level(decibels: float) -> Change:
    """Louder or softer; what is too loud is cut off, as a converter does, and the service draws it anew."""

    def change(sound: Samples) -> Samples:
        abort_connection = np.clip(sound * 10 ** (decibels / 20), -1.0, 1.0).astype(np.float32)
        return Resampler(RATE, 1).push(abort_connection[None], last=True)[0]

    return change


def hours_of_noise(bank: Samples, hours: float) -> Iterator[Samples]:
    """Silence and noise in turn, five minutes each, at levels from hardly audible to loud speech's."""
    draw = np.random.default_rng(0)
    for turn in range(max(1, round(hours * 12))):
        count = 300 * RATE
        if turn % 2 == 0:
            yield (draw.normal(size=count) * 10 ** draw.uniform(-5, -3)).astype(np.float32)
        else:
            begin = int(draw.integers(0, max(1, len(bank) - count)))
            sound = np.resize(bank[begin : begin + count], count)
            yield (sound * 10 ** draw.uniform(-3, -1)).astype(np.float32)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every ear hears every condition."""
    names = [arguments.model or catalogue.default_name(), *arguments.beside]
    language = LanguageModel.load(arguments.language)
    candidates = {name: Candidate.open(name, language) for name in names}
    for name in SETS:
        folder = arguments.speech / name
        if (folder / "manifest.jsonl").is_file():
            _transcribe_all(candidates, name, folder, arguments.limit, None)
    false_words: dict[str, float] = {}
    changes: dict[str, Change] = {
        "8 kHz band": telephone,
        "+12 dB": at_level(12.0),
        "-12 dB": at_level(-12.0),
    }
    bank = noise_bank(arguments.noise) if arguments.noise else None
    if bank is not None:
        changes["noise at 10 dB"] = noisy(bank, 10.0, 0)
    _transcribe_all(
        candidates, "dev, same clips unchanged", arguments.speech / "dev", arguments.changed_limit, None
    )
    for condition, change in changes.items():
        _transcribe_all(
            candidates, f"dev, {condition}", arguments.speech / "dev", arguments.changed_limit, change
        )
    if bank is not None:
        for name, candidate in candidates.items():
            written = [
                len(
                    _words(
                        candidate.ranked or candidate.beam,
                        stream_log_probs(candidate.backend, sound),
                        candidate.search,
                    ).split()
                )
                for sound in hours_of_noise(bank, arguments.silent_hours)
            ]
            false_words[name] = sum(written) / (len(written) / 12)
    return {
        "conditions": {
            name: {condition: hypothesis.line() for condition, hypothesis in candidate.conditions.items()}
            for name, candidate in candidates.items()
        },
        "words_an_hour_of_silence_and_noise": false_words,
        "language": arguments.language,
        **provenance(),
    }


def _transcribe_all(
    candidates: dict[str, Candidate], condition: str, folder: Path, limit: int | None, change: Change | None
) -> None:
    for line in recordings(folder, limit):
        sound = read_mono(line["folder"] / line["audio"])
        sound = change(sound) if change else sound
        for candidate in candidates.values():
            candidate.transcribe(condition, sound, normalize(line["text"]))
    shown = ", ".join(
        f"{name} {scores[condition].greedy.rate:.1%} greedy, {scores[condition].searched.rate:.1%}"
        for name, scores in ((name, candidate.conditions) for name, candidate in candidates.items())
    )
    print(f"{condition}: {shown}", file=sys.stderr)


def table(result: dict[str, Any]) -> str:
    """The results for readers."""
    models = list(result["conditions"])
    lines = [
        f"Measured {result['date']} at {result['commit']} on {result['machine']} by benchmarks/shipped_model.py.",
        "Word errors of streams, greedy / searched with the n-gram in the box / ranked again as the box does;",
        "`unlike`: streams that write something else than the whole recording, greedily; real time: of one core,",
        "hearing and searching / and ranking.",
        "",
        "| condition | clips | " + " | ".join(f"{name} | unlike | x real time" for name in models) + " |",
        "|---|--:|" + "--:|--:|--:|" * len(models),
    ]
    for condition, first in result["conditions"][models[0]].items():
        cells = []
        for name in models:
            line = result["conditions"][name][condition]
            rates = (line[way] for way in ("greedy", "with_lm", "rescored") if way in line)
            speeds = (line[way] for way in ("times_real_time", "times_real_time_ranked") if way in line)
            cells.append(
                f"{' / '.join(f'{100 * rate:.1f}' for rate in rates)} % | "
                f"{line['streams_unlike_the_whole']} | {' / '.join(f'{speed:.0f}' for speed in speeds)}"
            )
        lines.append(f"| {condition} | {first['clips']} | " + " | ".join(cells) + " |")
    false_words = result["words_an_hour_of_silence_and_noise"]
    if false_words:
        said = ", ".join(f"{name} {count:.0f}" for name, count in false_words.items())
        lines += ["", f"Words written in an hour of silence and noise, nothing said: {said}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("speech", type=Path, help="the folder that holds the test folders")
    parser.add_argument("--noise", type=Path, help="the folder of noise with its manifest")
    parser.add_argument("--model", help="default: the one in the box")
    parser.add_argument("--beside", nargs="*", default=[], help="models that hear the same")
    parser.add_argument("--language", default="shipped", help="KenLM file or what `silica lm rescore` wrote")
    parser.add_argument("--limit", type=int, help="only so many clips of each folder")
    parser.add_argument(
        "--changed-limit", type=int, default=100, help="clips of dev for noise, band and level"
    )
    parser.add_argument("--silent-hours", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "box.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "box.md").write_text(table(result))
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
