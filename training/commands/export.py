"""Turn a training run into a model that can be served: folded, FP16, INT8 and ONNX, each reloaded and
compared.
"""

import argparse
from pathlib import Path

HELP = "turn a training run into a model to serve"


def _one_or_more(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, not {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `silica export_model`."""
    parser.add_argument("source", type=Path, help="the run's folder, or a checkpoint file")
    parser.add_argument(
        "--out", type=Path, required=True, help="the folder for model.safetensors and its ONNX file"
    )
    parser.add_argument(
        "--clips",
        type=Path,
        required=True,
        help="manifest of speech for INT8's rounding and ranges, and to compare",
    )
    parser.add_argument(
        "--most", type=_one_or_more, default=60, help="take at most so many clips (default: 60)"
    )
    parser.add_argument(
        "--keep-norms",
        action="store_true",
        help="leave batch norms unfolded: training can go on from the file",
    )
    parser.add_argument(
        "--search",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="the search that suits the model, for its card: width, lm_weight, word_bonus, unknown_penalty, ...",
    )
    parser.add_argument(
        "--weights",
        choices=("fp16", "int8"),
        default="fp16",
        help="how the file stores them; int8 (a scale for each output channel) halves it (default: fp16)",
    )
    parser.add_argument(
        "--blank",
        type=float,
        default=0.0,
        metavar="NATS",
        help="add so much to the score of writing nothing: below 0, a model in doubt leaves less out (default: 0)",
    )
    parser.add_argument("--no-int8", action="store_true", help="no ranges and no ONNX file for INT8")
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Write, reload, compare, print."""
    import json
    import sys
    from dataclasses import asdict

    from lm.search.settings import parse_search_settings
    from training.data.manifests import read_manifest
    from training.export import export_model

    search = parse_search_settings(arguments.search)
    clips = read_manifest(arguments.clips)
    every = max(1, len(clips) // arguments.most)
    results = export_model(
        arguments.source,
        arguments.out,
        clips[::every][: arguments.most],
        int8=not arguments.no_int8,
        weights=arguments.weights,
        keep_norms=arguments.keep_norms,
        search=search,
        blank=arguments.blank,
        report=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if arguments.json:
        print(json.dumps({"forms": [asdict(result) for result in results]}))
        return 0
    for result in results:
        print(f"{result.form}: {result.file}, {result.bytes / 1e6:.1f} MB")
        print(
            f"  against the trained network on {result.clips} clips: {result.same_transcripts} transcripts the same, "
            f"{100 * result.same_best_symbol:.2f} % of outputs with the same symbol, "
            f"probabilities differ by at most {result.max_difference:.4f}"
        )
        if result.wer is not None and result.trained_wer is not None:
            print(
                f"  words wrong: {100 * result.wer:.2f} %, trained network {100 * result.trained_wer:.2f} %"
            )
    return 0
