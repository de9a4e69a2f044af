"""Word errors by window (left x hop x look-ahead x normalisation), greedy: the table of acoustic/README.md.

    python scripts/windows_table.py MANIFEST_FOLDER --model quartznet15x5-en [--limit 100] [--update acoustic/README.md]

Every left with every hop and look-ahead, other normalisations around the centre; every figure on the same
recordings. With --update the rows go between the markers of that file. Half an hour of one core with VNNI in INT8.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from acoustic import catalogue
from acoustic.calibration import known_ranges, with_ranges
from acoustic.checkpoint import Checkpoint
from acoustic.config import SPEECH_DEVIATION, SPEECH_MEAN
from acoustic.features import frame_count
from acoustic.runtime.backend import hear_stream, whole_features
from acoustic.runtime.cpu import CpuBackend
from acoustic.windows import LogProbs, Samples, StreamWindows, WindowPlan, plan_for
from lm.decoders import open_decoder
from lm.score import ErrorCounts, word_errors
from lm.text import normalise
from service.audio.files import read_mono

BEGIN, END = "<!-- windows table: begin -->", "<!-- windows table: end -->"
CENTRE = (2.56, 0.64)
LEFTS = (1.28, 2.56, 5.12)
HOPS = (0.16, 0.32, 0.64, 1.28)
LOOK_AHEADS = (0.3, 0.48, 0.64, 0.8, 1.28, 2.0)
NORMALISATIONS = ("running", "fixed", "utterance")


@dataclass(frozen=True)
class Row:
    """One row of the table: all look-aheads with one left context, hop and normalisation."""

    normalisation: str
    left_s: float
    hop_s: float

    @property
    def heard(self) -> float:
        """How often each frame goes through the network, at a look-ahead of 0.8 s."""
        return (self.left_s + self.hop_s + 0.8) / self.hop_s


def table_rows() -> Iterator[Row]:
    """The centre in every normalisation, then running normalisation with everything, the dearest last."""
    for normalisation in NORMALISATIONS:
        yield Row(normalisation, *CENTRE)
    for row in sorted(
        (Row("running", left, hop) for left in LEFTS for hop in HOPS), key=lambda row: row.heard
    ):
        if (row.left_s, row.hop_s) != CENTRE:
            yield row


def backends(checkpoint: Checkpoint, precision: str) -> dict[str, CpuBackend]:
    """The same network behind each normalisation."""
    ranges = known_ranges(checkpoint) if precision == "int8" else None
    features = replace(checkpoint.config.features, mean=SPEECH_MEAN, deviation=SPEECH_DEVIATION)
    made = {}
    for kind in NORMALISATIONS:
        config = replace(checkpoint.config, features=replace(features, normalise=kind))  # type: ignore[arg-type]
        variant = replace(checkpoint, config=config)
        made[kind] = CpuBackend(with_ranges(variant, ranges) if ranges else variant, precision)  # type: ignore[arg-type]
    return made


def with_foresight(backend: CpuBackend, samples: Samples, plan: WindowPlan) -> LogProbs:
    """Windows over features that the whole utterance normalised: no stream can, but it shows what that costs."""
    features = whole_features(backend.front_end, backend.trained_config.features, samples)
    config = backend.trained_config
    stream = StreamWindows(config, plan)
    heard = []
    for window in [*stream.push(samples), *stream.finish()]:
        span = window.span
        log_probs = backend.run(features[:, span.first_frame : span.end_frame])
        before = span.first_frame // config.frames_per_output
        heard.append(log_probs[span.keep_first - before : span.keep_end - before])
    return np.concatenate(heard)


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
    parser.add_argument("--longest-s", type=float, default=8.0, help="leave longer recordings out (time)")
    parser.add_argument("--update", type=Path, help="file with the markers to write the table between")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    lines = [json.loads(line) for line in (arguments.folder / "manifest.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["text"] and line["duration"] <= arguments.longest_s]
    lines = lines[:: max(1, len(lines) // arguments.limit)][: arguments.limit]
    recordings = [(read_mono(arguments.folder / line["audio"]), normalise(line["text"])) for line in lines]
    checkpoint = catalogue.find(arguments.model)
    made = backends(checkpoint, arguments.precision)
    alphabet = checkpoint.config.alphabet
    seconds = sum(frame_count(checkpoint.config.features, len(samples)) for samples, _ in recordings) / 100

    whole = errors(made["utterance"].whole, recordings, alphabet)
    rows: dict[Row, str] = {}
    for row in table_rows():
        began = time.process_time()
        backend = made[row.normalisation]
        rates = []
        for look_ahead_s in LOOK_AHEADS:
            plan = plan_for(backend.config, row.left_s, row.hop_s, look_ahead_s)
            hear: Callable[[CpuBackend, Samples, WindowPlan], LogProbs] = (
                with_foresight if row.normalisation == "utterance" else hear_stream
            )
            counts = errors(lambda sound: hear(backend, sound, plan), recordings, alphabet)  # noqa: B023
            rates.append(f"{100 * counts.rate:.2f}")
        rows[row] = (
            f"| {row.normalisation} | {row.left_s:.2f} | {row.hop_s:.2f} | {' | '.join(rates)} | {row.heard:.1f} |"
        )
        print(rows[row], f"{time.process_time() - began:.0f} s", file=sys.stderr, flush=True)

    head = (
        f"{arguments.model}, {arguments.precision.upper()}, greedy, {len(recordings)} recordings "
        f"({seconds / 60:.0f} minutes, {whole.words:,} words, none over {arguments.longest_s:.0f} s) of "
        f"`{arguments.folder.name}`; {time.strftime('%Y-%m-%d')}. Heard whole: **{whole.rate:.2%}** WER. In windows, "
        "percent of words wrong by look-ahead; *heard* is how often each frame goes through the network at 0.8 s.\n\n"
        f"| normalised by | left s | hop s | {' | '.join(f'{ahead} s' for ahead in LOOK_AHEADS)} | heard |\n"
        f"|---|--:|--:|{'--:|' * len(LOOK_AHEADS)}--:|"
    )
    shown = sorted(rows, key=lambda row: (NORMALISATIONS.index(row.normalisation), row.left_s, row.hop_s))
    table = "\n".join([head, *(rows[row] for row in shown)])
    print(table)
    if arguments.update:
        text = arguments.update.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        arguments.update.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
