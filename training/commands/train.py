"""Train a model by a recipe: shipped (`silica train --list`) or a TOML file of your own.

Stopped or killed, the same line continues it. On several GPUs: torchrun --nproc-per-node 8 --no-python silica
train RECIPE ...
"""

import argparse
import json
from pathlib import Path

HELP = "train a model by a recipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `silica train`."""
    parser.add_argument("recipe", nargs="?", help="a shipped recipe's name or a .toml file")
    parser.add_argument("--list", action="store_true", help="list the shipped recipes")
    parser.add_argument("--data", type=Path, help="the folder that the recipe's manifests lie in")
    parser.add_argument("--out", type=Path, help="the run's folder (default: runs/RECIPE)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a value of the recipe"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="where to train (default: a GPU if there is one)"
    )
    parser.add_argument("--stop-after-s", type=float, help="stop after so many seconds, with a checkpoint")
    parser.add_argument(
        "--dry-run", action="store_true", help="print model, data, schedule and time; train nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Train, or say what would be trained."""
    from training.errors import TrainingError
    from training.recipe import load_recipe, shipped_recipes, with_settings

    if arguments.list:
        titles = {name: load_recipe(name).title for name in shipped_recipes()}
        listed = "\n".join(f"{name:28} {title}" for name, title in titles.items())
        print(json.dumps({"recipes": titles}) if arguments.json else listed)
        return 0
    if not arguments.recipe:
        raise TrainingError(
            "Name a recipe: `silica train RECIPE`; `silica train --list` shows the shipped ones."
        )
    recipe = with_settings(load_recipe(arguments.recipe), arguments.set)
    if arguments.dry_run:
        from training.run.dry_run import dry_run

        report = dry_run(recipe, arguments.data, arguments.device)
        print(report.as_json() if arguments.json else report.text())
        return 0
    from training.run.run import train_recipe

    folder = arguments.out or Path("runs") / Path(arguments.recipe).stem
    return train_recipe(
        recipe,
        folder,
        data=arguments.data,
        device=arguments.device,
        stop_after_s=arguments.stop_after_s,
        as_json=arguments.json,
    )
