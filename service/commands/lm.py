"""Build, measure, adapt and tune n-gram language models (KenLM)."""

import argparse
from pathlib import Path

HELP = "build, measure, adapt and tune language models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-verb a task."""
    verbs = parser.add_subparsers(dest="lm_verb", metavar="TASK", required=True)
    _add_build(verbs.add_parser("build", help="text to language model (compiles KenLM's builder once)"))
    measured = verbs.add_parser("perplexity", help="how surprised a model is by a text")
    measured.add_argument("model", type=Path, help=".binary or .arpa; 'shipped' for the model in the box")
    measured.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help=".txt, .txt.xz or .txt.gz")
    info = verbs.add_parser("info", help="order, n-grams, words and size of a model")
    info.add_argument(
        "model", type=Path, nargs="?", default=Path("shipped"), help="default: the model in the box"
    )
    marks = verbs.add_parser(
        "train-punctuation", help="train the small model that restores marks and capitals"
    )
    marks.add_argument(
        "texts", type=Path, nargs="+", metavar="TEXT", help="written text, with case and punctuation"
    )
    marks.add_argument("--out", type=Path, required=True, metavar="FILE", help="writes a .safetensors file")
    marks.add_argument("--passes", type=int, default=1, help="times through the text (default 1)")
    for verb in (measured, info, marks):
        verb.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def _add_build(build: argparse.ArgumentParser) -> None:
    build.add_argument("texts", type=Path, nargs="*", metavar="TEXT", help=".txt, .txt.xz or .txt.gz")
    build.add_argument(
        "--recipe", type=Path, help="a recipe (.toml) that names texts and settings; see lm/pretrained"
    )
    build.add_argument("--texts-folder", type=Path, help="where the texts that the recipe names lie")
    build.add_argument("--order", type=int, help="longest n-gram (default 4)")
    build.add_argument(
        "--prune", type=int, nargs="+", metavar="N", help="counts to leave out an order (default 0 0 1 2)"
    )
    build.add_argument("--minimum-count", type=int, help="words seen less often become unknown (default 1)")
    build.add_argument("--out", type=Path, required=True, metavar="NAME", help="writes NAME.binary")
    build.add_argument("--keep-arpa", action="store_true", help="keep NAME.arpa beside it")
    build.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Do the task named on the line."""
    tasks = {
        "build": _build,
        "perplexity": _perplexity,
        "info": _info,
        "train-punctuation": _train_punctuation,
    }
    return tasks[arguments.lm_verb](arguments)


def _progress(text: str) -> None:
    import sys

    print(text, file=sys.stderr, flush=True)


def _show(figures: dict[str, object], as_json: bool) -> int:
    """Figures as an aligned table, or as one JSON object."""
    import json

    if as_json:
        print(json.dumps(figures))
        return 0
    width = max(map(len, figures))
    for name, value in figures.items():
        shown = (
            f"{value:,}"
            if isinstance(value, int)
            else f"{value:,.2f}"
            if isinstance(value, float)
            else str(value)
        )
        print(f"{name.replace('_', ' '):<{width}}  {shown}")
    return 0


def _build(arguments: argparse.Namespace) -> int:
    from lm.building import build
    from lm.recipe import read_recipe, settings_from

    if arguments.recipe:
        recipe = read_recipe(arguments.recipe, arguments.texts_folder)
        texts, settings = recipe.texts, recipe.settings
    else:
        texts, settings = arguments.texts, None
    settings = settings_from(
        settings, order=arguments.order, prune=arguments.prune, minimum_count=arguments.minimum_count
    )
    report = build(texts, arguments.out, settings, _progress, keep_arpa=arguments.keep_arpa)
    if arguments.json:
        return _show(report.as_json(), True)
    figures: dict[str, object] = {
        "model": report.path,
        "text": f"{report.words:,} words in {report.lines:,} lines",
        "words known": report.vocabulary,
        "n-grams": " ".join(f"{count:,}" for count in report.ngrams),
        "size": f"{report.size_bytes / 1e6:.1f} MB",
        "built in": f"{report.seconds:.0f} s",
    }
    if report.held_out:
        figures["held-out text"] = f"{report.held_out.words:,} words, {report.held_out.unknown:,} unknown"
        figures["perplexity"] = report.held_out.perplexity
        figures["perplexity of known words"] = report.held_out.perplexity_known
    return _show(figures, False)


def _model(path: Path) -> Path:
    """The file itself, or the shipped model for the word `shipped`."""
    from lm.building import shipped_model

    return shipped_model() if str(path) == "shipped" else path


def _perplexity(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lm.building import perplexity
    from lm.corpus import normal_lines

    return _show(asdict(perplexity(_model(arguments.model), normal_lines(arguments.texts))), arguments.json)


def _info(arguments: argparse.Namespace) -> int:
    from lm.building import describe

    return _show(describe(_model(arguments.model)), arguments.json)


def _train_punctuation(arguments: argparse.Namespace) -> int:
    import torch

    from lm.punctuation.training import PunctuationSettings, train

    torch.set_num_threads(1)
    settings = PunctuationSettings(passes=arguments.passes)
    figures = train(arguments.texts, arguments.out, settings, _progress)
    return _show(dict(figures), arguments.json)
