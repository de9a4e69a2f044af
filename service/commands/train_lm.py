"""Train a Transformer-XL language model from text, for rescoring; stop and resume as you like."""

import argparse
from pathlib import Path
from typing import Any

HELP = "train a Transformer-XL language model from text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Texts, shape and length of the run."""
    parser.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help=".txt, .txt.xz or .txt.gz")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="weights, state, prepared text"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in FOLDER")
    parser.add_argument("--steps", type=int, default=6000, help="steps in all (default 6000)")
    parser.add_argument("--streams", type=int, default=32, help="texts read side by side (default 32)")
    parser.add_argument(
        "--segment", type=int, default=64, help="words a step and stream; also the memory (default 64)"
    )
    parser.add_argument("--vocabulary", type=int, default=30000, help="words known (default 30000)")
    parser.add_argument(
        "--cutoffs", type=int, nargs="*", default=[4000], help="where rarer words begin (default 4000)"
    )
    parser.add_argument("--width", type=int, default=256, help="width of the network (default 256)")
    parser.add_argument("--layers", type=int, default=4, help="layers (default 4)")
    parser.add_argument("--heads", type=int, default=4, help="attention heads a layer (default 4)")
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="for several passes over little text (default 0)"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=3e-3, help="highest learning rate (default 0.003)"
    )
    parser.add_argument(
        "--bfloat16", action="store_true", help="multiply in 16 bits: much faster on CPUs that have it"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--json", action="store_true", help="the closing figures as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prepare, train, measure."""
    import json
    import sys
    from dataclasses import asdict, replace

    import torch

    from lm.errors import LanguageError
    from lm.rescoring.transformer_xl.config import TransformerConfig
    from lm.rescoring.transformer_xl.storage import save_model
    from lm.rescoring.transformer_xl.training import (
        HELD_OUT_TEXT,
        STATE,
        WEIGHTS,
        WEIGHTS_8_BIT,
        TrainingSettings,
        measure,
        prepare,
        train,
    )

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if arguments.threads < 1:
        raise LanguageError(f"{arguments.threads} threads: expected one or more")
    shape = TransformerConfig(
        vocabulary=arguments.vocabulary,
        width=arguments.width,
        layers=arguments.layers,
        heads=arguments.heads,
        inner=4 * arguments.width,
        segment=arguments.segment,
        memory=arguments.segment,
        cutoffs=tuple(arguments.cutoffs),
        dropout=arguments.dropout,
    )
    settings = TrainingSettings(
        steps=arguments.steps,
        streams=arguments.streams,
        learning_rate=arguments.learning_rate,
        bfloat16=arguments.bfloat16,
    )
    if (arguments.out / STATE).is_file() and not arguments.resume:
        raise LanguageError(
            f"{arguments.out} holds a begun training: --resume goes on, another --out begins anew"
        )
    torch.set_num_threads(arguments.threads)
    vocabulary = prepare(arguments.texts, arguments.out, arguments.vocabulary, progress)
    config = replace(shape, vocabulary=len(vocabulary))
    network = train(arguments.out, vocabulary, config, settings, progress, arguments.resume)
    held_out = (arguments.out / HELD_OUT_TEXT).read_text().splitlines()
    figures: dict[str, Any] = {"held_out": "nothing: one line in a hundred would be"}
    if held_out:
        figures = asdict(measure(network, vocabulary, held_out))
    packed = arguments.out / WEIGHTS_8_BIT
    save_model(packed, network, vocabulary, eight_bits=True)
    figures["weights"], figures["in_8_bits"] = str(arguments.out / WEIGHTS), str(packed)
    figures["parameters"] = sum(weights.numel() for weights in network.parameters())
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(
                f"{name.replace('_', ' '):<18}{value:,.1f}"
                if isinstance(value, float)
                else f"{name:<18}{value}"
            )
    return 0
