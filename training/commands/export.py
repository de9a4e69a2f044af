"""Write a trained run as a model that can be served (FP16 or INT8 weights, and an INT8 ONNX file),
then reload every file and compare it with the trained network.
"""

import argparse
from pathlib import Path

HELP = "turn a training run into a model to serve"


def _positive_int(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of 1 or more, not {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `silica export`."""
    parser.add_argument("source", type=Path, help="run folder, or checkpoint file")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for model.safetensors and model.int8.onnx"
    )
    parser.add_argument(
        "--clips",
        type=Path,
        required=True,
        help="manifest of speech, for the calibration of INT8 and for the comparison",
    )
    parser.add_argument(
        "--max-clips", type=_positive_int, default=60, help="use at most this many clips (default: 60)"
    )
    parser.add_argument(
        "--weights",
        choices=("fp16", "int8"),
        default="fp16",
        help="precision of the weights in model.safetensors; int8 has one scale per output channel (default: fp16)",
    )
    parser.add_argument("--no-int8", action="store_true", help="no INT8 calibration and no ONNX file")
    parser.add_argument(
        "--keep-batchnorm",
        action="store_true",
        help="do not fold batch norm into the weights, so that the file can be trained further",
    )
    parser.add_argument(
        "--search",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="search settings for the model card: width, lm_weight, word_bonus, unknown_penalty, ...",
    )
    parser.add_argument(
        "--blank-bias",
        type=float,
        default=0.0,
        metavar="NATS",
        help="add this to the logit of blank; below 0 there are fewer deletions (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Write, reload, compare and print."""
    import json
    import sys
    from dataclasses import asdict

    from lm.search.settings import parse_search_settings
    from training.data.manifests import read_manifest
    from training.export import export_model

    search = parse_search_settings(arguments.search)
    clips = read_manifest(arguments.clips)
    every = max(1, len(clips) // arguments.max_clips)
    comparisons = export_model(
        arguments.source,
        arguments.out,
        clips[::every][: arguments.max_clips],
        int8=not arguments.no_int8,
        weights=arguments.weights,
        keep_batchnorm=arguments.keep_batchnorm,
        search=search,
        blank_bias=arguments.blank_bias,
        report=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if arguments.json:
        print(json.dumps({"forms": [asdict(comparison) for comparison in comparisons]}))
        return 0
    for comparison in comparisons:
        print(f"{comparison.form}: {comparison.file}, {comparison.bytes / 1e6:.1f} MB")
        print(
            f"  against the trained network on {comparison.clips} clips: "
            f"{comparison.same_transcripts} transcripts equal, "
            f"{100 * comparison.same_best_symbol:.2f} % of outputs with the same symbol, "
            f"probabilities differ by at most {comparison.max_difference:.4f}"
        )
        if comparison.wer is not None and comparison.trained_wer is not None:
            print(f"  WER {100 * comparison.wer:.2f} %, trained network {100 * comparison.trained_wer:.2f} %")
    return 0
