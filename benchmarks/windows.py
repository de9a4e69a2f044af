"""Word errors by window (left x hop x look-ahead x normalization), greedy: the table of acoustic/README.md.

    python benchmarks/windows.py MANIFEST_FOLDER --model quartznet15x5-en [--limit 100] [--update acoustic/README.md]

Every left with every hop and look-ahead, other normalizations around the centre; every figure on the same
recordings. That is half an hour of one quiet core with VNNI in INT8, so what was measured is kept (--results) and a
run that was stopped goes on; cells that are not measured yet show a dash. The most telling cells come first.
--update writes the table between the markers of that file, after every cell.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acoustic import catalogue
from acoustic.architectures import SPEECH_DEVIATION, SPEECH_MEAN
from acoustic.checkpoint import Checkpoint
from acoustic.export.cache import fingerprint
from acoustic.export.graph import Ranges
from acoustic.features.framing import Samples
from acoustic.quantization.ranges import find_ranges, with_ranges
from acoustic.runtime.backend import recording_features, stream_log_probs
from acoustic.runtime.cpu import CpuBackend
from acoustic.windows import LogProbs, StreamWindows, WindowPlan, plan_for
from lm.decoders import open_decoder
from lm.score import ErrorCounts, word_errors
from lm.text.normalize import normalize
from service.audio.files import read_mono

BEGIN, END = "<!-- windows table: begin -->", "<!-- windows table: end -->"
LEFTS = (1.28, 2.56, 5.12)
HOPS = (0.16, 0.32, 0.64, 1.28)
LOOK_AHEADS = (0.3, 0.48, 0.64, 0.8, 1.28, 2.0)
NORMALIZATIONS = ("running", "fixed", "utterance")
CENTRE = (2.56, 0.64, 0.8)


@dataclass(frozen=True)
class Cell:
    """One figure of the table."""

    normalization: str
    left_s: float
    hop_s: float
    look_ahead_s: float

    @property
    def name(self) -> str:
        """In the file of results."""
        return f"{self.normalization} {self.left_s} {self.hop_s} {self.look_ahead_s}"

    @property
    def heard(self) -> float:
        """How often each frame goes through the network."""
        return (self.left_s + self.hop_s + self.look_ahead_s) / self.hop_s

    @property
    def away(self) -> int:
        """In how many things the cell differs from the centre."""
        mine = (self.left_s, self.hop_s, self.look_ahead_s)
        return sum(one != other for one, other in zip(mine, CENTRE, strict=True))


def cells() -> list[Cell]:
    """Running normalization with everything, the others at the centre's left and hop; the nearest and cheapest
    first."""
    left, hop, _ = CENTRE
    every = [Cell("running", *windows) for windows in product(LEFTS, HOPS, LOOK_AHEADS)]
    every += [Cell(kind, left, hop, ahead) for kind in NORMALIZATIONS[1:] for ahead in LOOK_AHEADS]
    return sorted(every, key=lambda cell: (cell.away > 1, cell.heard))


def backends(checkpoint: Checkpoint, precision: str, ranges: Ranges | None) -> dict[str, CpuBackend]:
    """The same network behind each normalization."""
    features = replace(checkpoint.config.features, mean=SPEECH_MEAN, deviation=SPEECH_DEVIATION)
    made = {}
    for kind in NORMALIZATIONS:
        config = replace(checkpoint.config, features=replace(features, normalize=kind))  # type: ignore[arg-type]
        variant = replace(checkpoint, config=config)
        made[kind] = CpuBackend(with_ranges(variant, ranges) if ranges else variant, precision)  # type: ignore[arg-type]
    return made


def with_foresight(backend: CpuBackend, samples: Samples, plan: WindowPlan) -> LogProbs:
    """Windows over features that the whole utterance normalized: no stream can, but it shows what that costs."""
    features = recording_features(backend.front_end, backend.trained_config.features, samples)
    config = backend.trained_config
    stream = StreamWindows(config, plan)
    heard = []
    for window in [*stream.push(samples), *stream.finish()]:
        span = window.span
        log_probs = backend.run(features[:, span.first_frame : span.end_frame])
        before = span.first_frame // config.frames_per_output
        heard.append(log_probs[span.keep_first - before : span.keep_end - before])
    return np.concatenate(heard)


def heard_as(cell: Cell, backend: CpuBackend) -> Callable[[Samples], LogProbs]:
    """A recording in the cell's windows."""
    plan = plan_for(backend.config, cell.left_s, cell.hop_s, cell.look_ahead_s)
    hear: Callable[[CpuBackend, Samples, WindowPlan], LogProbs] = (
        with_foresight if cell.normalization == "utterance" else stream_log_probs
    )
    return lambda sound: hear(backend, sound, plan)


def errors(
    hear: Callable[[Samples], LogProbs], recordings: list[tuple[Samples, str]], alphabet: str
) -> ErrorCounts:
    """Greedy word errors over all recordings."""
    decoder = open_decoder("greedy", alphabet)
    total = ErrorCounts()
    for samples, text in recordings:
        utterance = decoder.start()
        utterance.push(hear(samples))
        total += word_errors(text, utterance.finish()[0].text)
    return total


def main() -> int:
    """Run every case, print the table, and write it where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with manifest.jsonl")
    parser.add_argument("--model", default="quartznet15x5-en")
    parser.add_argument("--precision", default="int8", choices=("int8", "fp32"))
    parser.add_argument("--limit", type=int, default=100, help="recordings, evenly spread over the manifest")
    parser.add_argument("--max-s", type=float, default=8.0, help="leave longer recordings out (time)")
    parser.add_argument("--update", type=Path, help="file with the markers to write the table between")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/windows.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    lines = [json.loads(line) for line in (arguments.folder / "manifest.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["text"] and line["duration"] <= arguments.max_duration_s]
    lines = lines[:: max(1, len(lines) // arguments.limit)][: arguments.limit]
    recordings = [(read_mono(arguments.folder / line["audio"]), normalize(line["text"])) for line in lines]
    checkpoint = catalogue.find(arguments.model)
    ranges = find_ranges(checkpoint) if arguments.precision == "int8" else None
    made = backends(checkpoint, arguments.precision, ranges)
    alphabet = checkpoint.config.alphabet
    seconds = sum(len(samples) for samples, _ in recordings) / checkpoint.config.features.sample_rate
    about = (
        f"{arguments.model}, {arguments.precision.upper()}, greedy, {len(recordings)} recordings "
        f"({seconds / 60:.0f} minutes, none over {arguments.max_duration_s:.0f} s) of `{arguments.folder.name}`"
    )
    results = Results(arguments.results, about, fingerprint(checkpoint, ranges))
    if results.whole is None:
        results.add("whole", errors(made["utterance"].recording_log_probs, recordings, alphabet))
    for cell in cells():
        if cell.name in results.known:
            continue
        began = time.process_time()
        counts = errors(heard_as(cell, made[cell.normalization]), recordings, alphabet)
        results.add(cell.name, counts)
        print(
            f"{cell.name}: {counts.rate:.2%}, {time.process_time() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        if arguments.update:
            update(arguments.update, results.table())
    print(results.table())
    return 0


def update(file: Path, table: str) -> None:
    """Put the table between the file's markers."""
    text = file.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    file.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


class Results:
    """What was measured so far, kept in a file: words wrong by cell."""

    def __init__(self, file: Path, about: str, network: str) -> None:
        """network: the fingerprint of weights and ranges; figures of others are never mixed in."""
        self.file = file
        self.network = network
        self.known: dict[str, dict[str, Any]] = {}
        self.about = about
        if file.exists():
            kept = json.loads(file.read_text())
            if kept["about"] != about:
                raise SystemExit(
                    f"{file} holds figures of {kept['about']}: name another file with --results."
                )
            if kept.get("network") != network:
                raise SystemExit(
                    f"{file} holds figures of other weights or ranges, or does not say of which: name another file "
                    "with --results."
                )
            self.known = kept["cells"]

    @property
    def whole(self) -> dict[str, Any] | None:
        """Whole recordings."""
        return self.known.get("whole")

    def add(self, name: str, counts: ErrorCounts) -> None:
        """Keep a figure."""
        self.known[name] = {"errors": counts.errors, "words": counts.words, "date": time.strftime("%Y-%m-%d")}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"about": self.about, "network": self.network, "cells": self.known}
        self.file.write_text(json.dumps(kept, indent=1) + "\n")

    def table(self) -> str:
        """In Markdown."""
        assert self.whole is not None
        dates = sorted({figure["date"] for figure in self.known.values()})
        lines = [
            f"{self.about}, {self.whole['words']:,} words; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. Heard "
            f"whole: **{percent(self.whole)} %** WER. In windows, percent of words wrong by look-ahead; *heard* is how "
            "often each frame goes through the network at 0.8 s.\n",
            f"| normalized by | left s | hop s | {' | '.join(f'{ahead} s' for ahead in LOOK_AHEADS)} | heard |",
            f"|---|--:|--:|{'--:|' * len(LOOK_AHEADS)}--:|",
        ]
        rows = dict.fromkeys((cell.normalization, cell.left_s, cell.hop_s) for cell in cells())
        for row in sorted(rows, key=lambda row: (NORMALIZATIONS.index(row[0]), row[1:])):
            figures = [self.known.get(Cell(*row, ahead).name) for ahead in LOOK_AHEADS]
            if any(figures):
                shown = " | ".join(percent(figure) for figure in figures)
                kind, left, hop = row
                lines.append(f"| {kind} | {left:.2f} | {hop:.2f} | {shown} | {Cell(*row, 0.8).heard:.1f} |")
        return "\n".join(lines)


def percent(figure: dict[str, Any] | None) -> str:
    """Words wrong."""
    return "–" if figure is None else f"{100 * figure['errors'] / figure['words']:.2f}"


if __name__ == "__main__":
    sys.exit(main())
