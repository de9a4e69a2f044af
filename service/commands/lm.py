"""Build, measure, adapt and tune n-gram language models (KenLM)."""

import argparse
from pathlib import Path

HELP = "build, measure, adapt and tune language models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-verb a task."""
    verbs = parser.add_subparsers(dest="lm_verb", metavar="TASK", required=True)

    def add_task(name: str, does: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")

    _add_build(add_task("build", "text to language model (compiles KenLM's builder once)"))
    measured = add_task("perplexity", "how surprised a model is by a text")
    measured.add_argument(
        "model",
        type=Path,
        help=".binary, .arpa or a Transformer-XL (.safetensors); 'shipped' for the model in the box",
    )
    measured.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help=".txt, .txt.xz or .txt.gz")
    info = add_task("info", "order, n-grams, words and size of a model")
    info.add_argument(
        "model", type=Path, nargs="?", default=Path("shipped"), help="default: the model in the box"
    )
    marks = add_task("train-punctuation", "train the small model that restores marks and capitals")
    marks.add_argument(
        "texts", type=Path, nargs="+", metavar="TEXT", help="written text, with case and punctuation"
    )
    marks.add_argument("--out", type=Path, required=True, metavar="FILE", help="writes a .safetensors file")
    marks.add_argument("--passes", type=int, default=1, help="times through the text (default 1)")
    adapt = add_task("adapt", "lean a model towards your own text; new words enter")
    adapt.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help="your text")
    adapt.add_argument("--base", type=Path, default=Path("shipped"), help="default: the model in the box")
    adapt.add_argument("--out", type=Path, required=True, metavar="NAME", help="writes NAME.binary")
    adapt.add_argument("--share", type=float, help="the most a context takes from the text (default 0.5)")
    adapt.add_argument(
        "--half-weight-count", type=float, help="occurrences for half of that share (default 5)"
    )
    adapt.add_argument("--measure", type=Path, help="a text to measure before and after")
    tune = add_task("tune", "choose weight, word bonus and pruning by word errors")
    tune.add_argument(
        "manifest", type=Path, help="manifest.jsonl (audio and text a line), or the folder it is in"
    )
    tune.add_argument(
        "--log-probs",
        type=Path,
        required=True,
        help="what `silica evaluate --save-log-probs` wrote: AUDIO-STEM.npy, [frames, classes]",
    )
    tune.add_argument(
        "--model", type=Path, action="append", help="repeat for other prunings; default: shipped"
    )
    tune.add_argument(
        "--prune",
        type=int,
        nargs="+",
        action="append",
        default=[],
        metavar="N",
        help="build a model with this pruning and try it too; repeatable; needs --text or --recipe",
    )
    tune.add_argument("--text", type=Path, action="append", default=[], help="text to build from; repeatable")
    tune.add_argument("--recipe", type=Path, help="a recipe that names the texts to build from")
    tune.add_argument("--texts-folder", type=Path, help="where the texts that the recipe names lie")
    tune.add_argument(
        "--weights",
        type=float,
        nargs="+",
        default=[0.3, 0.4, 0.5, 0.6, 0.7],
        help="weights of the language model to try",
    )
    tune.add_argument(
        "--bonuses", type=float, nargs="+", default=[0.5, 1.0, 1.5], help="bonuses of each word to try"
    )
    tune.add_argument("--every", type=int, default=1, help="take one clip in this many (default 1)")
    tune.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="writes tuned.json and tuned.png"
    )
    readable = add_task("readable", "how well figures come back in a written text")
    readable.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help="written text")
    rescore = add_task("rescore", "what rescoring is worth: word errors greedy, searched, rescored")
    rescore.add_argument(
        "manifest", type=Path, help="manifest.jsonl (audio and text a line), or the folder it is in"
    )
    rescore.add_argument(
        "--log-probs",
        type=Path,
        required=True,
        help="what `silica evaluate --save-log-probs` wrote: AUDIO-STEM.npy, [frames, classes]",
    )
    rescore.add_argument("--model", type=Path, default=Path("shipped"), help="n-gram of the search (shipped)")
    rescore.add_argument(
        "--rescorer",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="a bigger n-gram, or weights that `silica train-lm` wrote; repeatable",
    )
    rescore.add_argument("--carry", action="store_true", help="let them know what was said before each clip")
    rescore.add_argument(
        "--folds",
        type=int,
        default=2,
        metavar="N",
        help="deal the speakers into N parts; each is counted with the weights chosen on the others (default 2)",
    )
    rescore.add_argument("--max-hypotheses", type=int, default=24, help="readings a clip (default 24)")
    rescore.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="writes the models and their best weights (.json), to be given as --language-model",
    )
    search = (
        "what the search goes by, as a model's card names it (`silica models show`), where not the defaults"
    )
    for verb in (tune, rescore):
        verb.add_argument(
            "--search", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=search
        )
    for verb in (measured, info, marks, adapt, tune, readable, rescore):
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
    build.add_argument("--spelled", type=int, metavar="LINES", help="lines of spelled words and codes to add")
    build.add_argument("--max-mb", type=float, metavar="MB", help="keep what is worth most in so much")
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
        "adapt": _adapt,
        "tune": _tune,
        "readable": _report_lines,
        "rescore": _rescore,
    }
    return tasks[arguments.lm_verb](arguments)


def _progress(text: str) -> None:
    import sys

    print(text, file=sys.stderr, flush=True)


def _show(evaluate_rescoring: dict[str, object], as_json: bool) -> int:
    """Figures as an aligned table, or as one JSON object."""
    import json

    if as_json:
        print(json.dumps(evaluate_rescoring))
        return 0
    width = max(map(len, evaluate_rescoring))
    for name, value in evaluate_rescoring.items():
        print(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    """One figure, or several of them, for people."""
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return str(value)


def _build(arguments: argparse.Namespace) -> int:
    from lm.ngram.build_recipe import build_recipe
    from lm.ngram.recipe import default_recipe, read_recipe

    path, folder = arguments.recipe, arguments.texts_folder
    recipe = (read_recipe(path, folder) if path else default_recipe(arguments.texts)).with_settings(
        arguments.max_mb,
        order=arguments.order,
        prune=arguments.prune,
        minimum_count=arguments.minimum_count,
        spelled_lines=arguments.spelled,
    )
    report = build_recipe(recipe, arguments.out, _progress, keep_arpa=arguments.keep_arpa)
    if arguments.json:
        return _show(report.as_json(), True)
    evaluate_rescoring: dict[str, object] = {
        "model": report.path,
        "text": f"{report.words:,} words in {report.lines:,} lines",
        "words known": report.vocabulary,
        "n-grams": report.ngrams,
        "size": f"{report.size_bytes / 1e6:.1f} MB",
        "built in": f"{report.seconds:.0f} s",
    }
    if report.held_out:
        evaluate_rescoring["held-out text"] = (
            f"{report.held_out.words:,} words, {report.held_out.unknown:,} unknown"
        )
        evaluate_rescoring["perplexity"] = report.held_out.perplexity
        evaluate_rescoring["perplexity of known words"] = report.held_out.perplexity_known
    return _show(evaluate_rescoring, False)


def _model(path: Path) -> Path:
    """The file itself, or the shipped model for the word `shipped`."""
    from lm.ngram.build import shipped_model

    return shipped_model() if str(path) == "shipped" else path


def _perplexity(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lm.ngram.build import perplexity
    from lm.text.corpus import normal_lines

    lines = normal_lines(arguments.texts)
    if arguments.model.suffix != ".safetensors":
        return _show(asdict(perplexity(_model(arguments.model), lines)), arguments.json)
    import torch

    from lm.rescoring.transformer_xl.storage import load
    from lm.rescoring.transformer_xl.training import measure

    torch.set_num_threads(1)
    network, vocabulary = load(arguments.model)
    return _show(asdict(measure(network, vocabulary, list(lines))), arguments.json)


def _info(arguments: argparse.Namespace) -> int:
    from lm.ngram.build import describe

    return _show(describe(_model(arguments.model)), arguments.json)


def _train_punctuation(arguments: argparse.Namespace) -> int:
    import torch

    from lm.text.punctuation.training import PunctuationSettings, train

    torch.set_num_threads(1)
    settings = PunctuationSettings(epochs=arguments.epochs)
    evaluate_rescoring = train(arguments.texts, arguments.out, settings, _progress)
    return _show(dict(evaluate_rescoring), arguments.json)


def _adapt(arguments: argparse.Namespace) -> int:
    from lm.ngram.adapt import AdaptSettings, adapt
    from lm.ngram.build import perplexity
    from lm.text.corpus import normal_lines

    base, out = _model(arguments.base), arguments.out
    out = out if out.suffix == ".binary" else out.with_name(out.name + ".binary")
    given = {"share": arguments.share, "half_weight_count": arguments.half_weight_count}
    settings = AdaptSettings(**{name: value for name, value in given.items() if value is not None})
    report = adapt(base, normal_lines(arguments.texts), out, settings, _progress)
    evaluate_rescoring: dict[str, object] = {
        "model": str(out),
        "lines": report.lines,
        "words": report.words,
        "new_words": len(report.new_words),
        "ngrams": report.ngrams,
        "size_bytes": out.stat().st_size,
    }
    if arguments.measure:
        for name, model in (("before", base), ("after", out)):
            measured = perplexity(model, normal_lines([arguments.measure]))
            evaluate_rescoring[f"perplexity_{name}"] = measured.perplexity
            evaluate_rescoring[f"unknown_{name}"] = measured.unknown
    return _show(evaluate_rescoring, arguments.json)


def _tune(arguments: argparse.Namespace) -> int:
    from lm.search.tuning import fixed_search_settings, read_clips, tune, write

    search = fixed_search_settings(arguments.search)
    models = [_model(path) for path in arguments.model or []] or (
        [] if arguments.prune else [_model(Path("shipped"))]
    )
    clips = read_clips(arguments.manifest, arguments.log_probs, arguments.every)
    models += _prunings(arguments)
    tuned = tune(clips, models, arguments.weights, arguments.bonuses, _progress, search)
    values, picture = write(tuned, arguments.out)
    evaluate_rescoring: dict[str, object] = {
        "clips": len(clips),
        "model": tuned.best.model,
        "lm_weight": tuned.best.lm_weight,
        "word_bonus": tuned.best.word_bonus,
        "wer_percent": 100 * tuned.best.rate,
        "values": str(values),
        "picture": str(picture),
    }
    return _show(evaluate_rescoring, arguments.json)


def _prunings(arguments: argparse.Namespace) -> list[Path]:
    """The models that `silica lm tune --prune` asks for, built beside the results."""
    from lm.errors import LanguageError
    from lm.ngram.build import build_several
    from lm.ngram.recipe import override_settings, read_recipe

    if not arguments.prune:
        return []
    texts, base = tuple(arguments.text), None
    if arguments.recipe:
        recipe = read_recipe(arguments.recipe, arguments.texts_folder)
        if len(recipe.parts) > 1 or recipe.max_mb:
            raise LanguageError(f"--prune wants a recipe of one part without max_mb, not {arguments.recipe}")
        texts, base = (*texts, *recipe.parts[0].texts), recipe.parts[0].settings
    if not texts:
        raise LanguageError("--prune builds models: give it text with --text or --recipe")
    wanted = {}
    for prune in arguments.prune:
        settings = override_settings(base, prune=prune)
        wanted[arguments.out / f"pruned-{'-'.join(map(str, prune))}.binary"] = settings
    missing = {path: settings for path, settings in wanted.items() if not path.is_file()}
    if missing:
        build_several(texts, missing, _progress)
    return list(wanted)


def _report_lines(arguments: argparse.Namespace) -> int:
    from lm.text.formatting import number_accuracy

    found = number_accuracy(arguments.texts)
    evaluate_rescoring: dict[str, object] = {
        "figures_in_the_text": found.figures,
        "figures_written": found.written,
        "precision_percent": 100 * found.precision,
        "recall_percent": 100 * found.recall,
    }
    return _show(evaluate_rescoring, arguments.json)


def _rescore(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict, replace

    from lm.ngram.trie import NGram
    from lm.rescoring.evaluation import evaluate_rescoring
    from lm.rescoring.n_best import RescoreSettings, Rescoring, open_rescorer
    from lm.search.settings import parse_search_settings, settings_from_card
    from lm.search.tuning import read_clips

    clips = read_clips(arguments.manifest, arguments.log_probs)
    rescorers = {str(path): open_rescorer(path) for path in arguments.rescorer}
    search = settings_from_card({"search": parse_search_settings(arguments.search)})
    search = replace(search, n_best=min(arguments.max_hypotheses, search.width))
    ngram = NGram.load(_model(arguments.model))
    found = evaluate_rescoring(
        clips,
        ngram,
        rescorers,
        search,
        arguments.max_hypotheses,
        _progress,
        arguments.carry,
        arguments.folds,
    )
    if arguments.out:
        last = found.steps[-1].best_weights
        searched = (search.lm_weight, search.word_bonus) if search.lm_weight > 0 else None
        settings = RescoreSettings(
            last[0], last[-1], last[1:-1], arguments.max_hypotheses, search_weights=searched
        )
        search_model = str(arguments.model)
        Rescoring(tuple(rescorers.values()), settings, search_model).save(arguments.out, arguments.rescorer)
    if arguments.json:
        return _show(asdict(found), True)

    def rate(errors: int) -> str:
        return f"{100 * errors / found.words:.2f} % ({errors} errors)"

    shown: dict[str, object] = {
        "clips": f"{len(clips)}, {found.words:,} words",
        "greedy": rate(found.greedy_errors),
        "searched": rate(found.search_errors),
    }
    for step in found.steps:
        name = " + ".join(["ranked again", *(Path(name).stem for name in step.rescorers)])
        best = f"{rate(step.best_errors)} with weights {_shown(step.best_weights)}"
        shown[name] = f"{rate(step.cross_validated_errors)}; chosen on all: {best}"
    shown["best of each list"] = rate(found.oracle_errors)
    return _show(shown, False)
