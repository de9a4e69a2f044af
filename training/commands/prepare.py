"""Make a verified manifest of a corpus: LibriSpeech, Common Voice, WSJ, AN4, speechocean762, LJ Speech, any
folder.

Every clip is decoded and measured, every transcript normalized and checked; stopped, the same line goes on.
"""

import argparse
from pathlib import Path

HELP = "make a verified manifest of a corpus"
CORPORA = (
    "auto",
    "librispeech",
    "commonvoice",
    "wsj",
    "an4",
    "speechocean",
    "ljspeech",
    "manifest",
    "folder",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `silica prepare`."""
    parser.add_argument("corpus", type=Path, help="the folder of the unpacked corpus")
    parser.add_argument(
        "--out", type=Path, required=True, help="where the manifest goes (and clips, if any are made)"
    )
    parser.add_argument("--kind", choices=CORPORA, default="auto", help="which corpus it is (default: look)")
    parser.add_argument("--licence", help="written into every line of the manifest")
    parser.add_argument(
        "--speeds", default="1", help="copies at these speeds, such as 0.9,1,1.1 (offline speed perturbation)"
    )
    parser.add_argument("--convert", action="store_true", help="write 16 kHz FLAC copies of all clips")
    parser.add_argument("--min-s", type=float, default=0.1, help="leave shorter clips out (default: 0.1)")
    parser.add_argument("--max-s", type=float, default=60.0, help="leave longer clips out (default: 60)")
    parser.add_argument("--keep-untranscribed", action="store_true", help="keep clips without a transcript")
    parser.add_argument("--workers", type=int, default=0, help="processes (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print the statistics as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prepare, then print the statistics."""
    import json
    import os
    import sys
    from dataclasses import asdict

    from training.data.corpora import CORPORA as finders
    from training.data.corpora import detect
    from training.data.prepare import Plan, prepare
    from training.errors import TrainingError

    kind = detect(arguments.corpus) if arguments.kind == "auto" else arguments.kind
    try:
        speeds = tuple(float(speed) for speed in arguments.speeds.split(","))
    except ValueError:
        raise TrainingError(f"--speeds {arguments.speeds!r}: expected numbers such as 0.9,1,1.1.") from None
    plan = Plan(
        out=arguments.out,
        corpus=arguments.corpus.name if kind == "folder" else kind,
        licence=arguments.licence,
        speeds=speeds,
        convert=arguments.convert,
        min_duration_s=arguments.min_duration_s,
        max_duration_s=arguments.max_duration_s,
        keep_untranscribed=arguments.keep_untranscribed,
    )

    def tell(line: str) -> None:
        print(line, file=sys.stderr)

    tell(f"{arguments.corpus} as {kind}")
    told = prepare(
        finders[kind](arguments.corpus), plan, workers=arguments.workers or os.cpu_count() or 1, tell=tell
    )
    print(json.dumps(asdict(told)) if arguments.json else told.text())
    if told.clips:
        return 0
    if set(told.refused) == {"no transcript"}:
        tell("nothing was kept: put a .txt of the same name beside each clip, or give --keep-untranscribed")
    return 1
