"""Measure the activation ranges that INT8 inference on a CPU needs, on a few minutes of speech. The ranges are stored
in the user's cache."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.audio.resample import Samples

HELP = "measure activation ranges for INT8 inference"

DEFAULT_SPEECH_S = 200.0
MAX_CLIP_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Model and recordings."""
    parser.add_argument("model", metavar="MODEL", help="name or path of the acoustic model")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="audio files or folders with speech that resembles the application's",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SPEECH_S,
        metavar="S",
        help="seconds of speech to use (default: %(default)g)",
    )
    parser.add_argument("--ranges", type=Path, metavar="FILE", help="also write the ranges to FILE as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Measure and store the ranges."""
    from acoustic import catalogue
    from acoustic.constants import SAMPLE_RATE
    from acoustic.quantization.calibration import calibrate
    from service.commands.transcribe import expand

    model = catalogue.find(arguments.model)
    recordings = _sample_recordings(expand(arguments.files), arguments.seconds)
    ranges = calibrate(model, recordings, report=lambda text: print(text, file=sys.stderr, flush=True))
    if arguments.ranges is not None:
        arguments.ranges.write_text(json.dumps(ranges), encoding="utf-8")
    seconds = sum(len(samples) for samples in recordings) / SAMPLE_RATE
    report = {
        "model": arguments.model,
        "recordings": len(recordings),
        "seconds": seconds,
        "tensors": len(ranges),
    }
    summary = f"{arguments.model} is ready for INT8: {len(ranges)} ranges from {seconds:.0f} s of speech"
    print(json.dumps(report) if arguments.json else summary)
    return 0


def _sample_recordings(files: list[str], seconds: float) -> "list[Samples]":
    """Recordings spread evenly over the files, up to this total length. Unreadable files are skipped with a message."""
    from acoustic.constants import SAMPLE_RATE
    from service.audio.files import read_mono
    from service.errors import ServiceError

    chosen: list[Samples] = []
    total_s = 0.0
    # Every 16th file first, then those between, for many speakers even if a few files are enough.
    for file in [file for first in range(16) for file in files[first::16]]:
        if total_s >= seconds:
            break
        try:
            samples = read_mono(file)[: int(MAX_CLIP_S * SAMPLE_RATE)]
        except ServiceError as error:
            print(f"silica: skipped: {error}", file=sys.stderr)
            continue
        chosen.append(samples)
        total_s += len(samples) / SAMPLE_RATE
    return chosen
