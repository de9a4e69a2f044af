"""Adapt a trained model to your own recordings: transfer learning on a manifest, from the averaged best
weights.

The values come from the recipe `finetune`; everything of it can be changed with --set.
"""

import argparse
from pathlib import Path

HELP = "adapt a trained model to your own recordings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `silica finetune`."""
    parser.add_argument(
        "start", help="the model to begin with: a name of `silica models` or a checkpoint file"
    )
    parser.add_argument(
        "--train", type=Path, action="append", required=True, help="manifest to train on (repeatable)"
    )
    parser.add_argument(
        "--dev", type=Path, action="append", default=[], help="manifest to choose the best weights by"
    )
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument(
        "--recipe", default="finetune", help="the recipe whose values are taken (default: finetune)"
    )
    parser.add_argument(
        "--freeze", action="append", default=[], metavar="PATTERN", help="such as 'blocks.0.*'"
    )
    parser.add_argument("--alphabet", default="", help="another alphabet than the model's")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PART.NAME=VALUE", help="change a value"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="where to train (default: a GPU if there is one)"
    )
    parser.add_argument("--stop-after-s", type=float, help="stop after so many seconds, with a checkpoint")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Fine-tune; the dev set is heard before the first step and as the recipe says."""
    from dataclasses import replace

    from training.recipe import load_recipe, with_settings
    from training.run.run import train_recipe

    recipe = load_recipe(arguments.recipe)
    model = replace(
        recipe.model,
        name="",
        start=arguments.start,
        freeze=tuple(arguments.freeze) or recipe.model.freeze,
        alphabet=arguments.alphabet or recipe.model.alphabet,
    )
    data = replace(
        recipe.data,
        train=tuple(str(path.absolute()) for path in arguments.train),
        dev=tuple(str(path.absolute()) for path in arguments.dev),
    )
    recipe = with_settings(replace(recipe, model=model, data=data), arguments.set)
    return train_recipe(
        recipe,
        arguments.out,
        device=arguments.device,
        stop_after_s=arguments.stop_after_s,
        as_json=arguments.json,
        hear_first=True,
    )
