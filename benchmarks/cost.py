"""What words cost: word errors against processor time, for each model and each way to search, as a picture.

    python -m benchmarks.cost ../shared/speech/dev silica-streaming-en quartznet15x5-en [--widths 16 64] [--limit 100]

Every model hears the clips as streams, greedily and with the language model in the box at each width of the search
(the rest of the search as the model's card says). Time is processor time on one core, hearing and searching together.
A model may be an older file (NAME=FILE): what a change of network or of hours has bought stands in one picture then.
Results go to `benchmarks/results/cost.json`, `.md` and `.png`, with date, commit and machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from acoustic.runtime import open_backend, stream_log_probs
from benchmarks.acoustic import provenance
from lm.decoders import SearchSettings, open_decoder
from lm.language_model import LanguageModel
from lm.score import ErrorCounts, word_errors
from lm.text.normalize import normalize
from service.audio.files import read_mono
from service.commands.evaluate import recordings
from service.scheduling.device import alphabet_and_search

RATE = 16_000
GREEDY = "greedy"


@dataclass
class Way:
    """One way to write what a model heard."""

    errors: ErrorCounts = field(default_factory=ErrorCounts)
    searching_s: float = 0.0


def measure(model: str, clips: Sequence[dict[str, Any]], widths: Sequence[int]) -> dict[str, Any]:
    """Word errors and milliseconds a second of sound, by the way that words were found."""
    backend = open_backend(model, "cpu", None)
    alphabet, search = alphabet_and_search(model)
    beam = LanguageModel.load("shipped").decoder("beam", alphabet)
    greedy = open_decoder("greedy", alphabet)
    ways = {GREEDY: (greedy, SearchSettings())}
    ways |= {f"width {width}": (beam, replace(search, width=width)) for width in sorted(widths)}
    found = {name: Way() for name in ways}
    hearing_s = sound_s = 0.0
    for number, line in enumerate([clips[0], *clips]):
        sound, reference = read_mono(line["folder"] / line["audio"]), normalize(line["text"])
        began = time.process_time()
        heard = stream_log_probs(backend, sound)
        ended = time.process_time()
        written = {}
        for name, (decoder, settings) in ways.items():
            turn = time.process_time()
            utterance = decoder.start(settings)
            utterance.push(heard)
            written[name] = (utterance.finish()[0].text, time.process_time() - turn)
        if number == 0:  # what is compiled and loaded once is not counted
            continue
        hearing_s += ended - began
        sound_s += len(sound) / RATE
        for name, (text, seconds) in written.items():
            found[name].errors += word_errors(reference, text)
            found[name].searching_s += seconds
    hearing_ms = 1000 * hearing_s / sound_s
    return {
        "hearing_ms": round(hearing_ms, 2),
        "sound_s": round(sound_s),
        "ways": {
            name: {
                "word_errors": round(way.errors.rate, 4),
                "ms_a_second": round(hearing_ms + 1000 * way.searching_s / sound_s, 2),
            }
            for name, way in found.items()
        },
    }


def table(result: dict[str, Any]) -> str:
    """The figures behind the picture."""
    lines = [
        f"Measured {result['date']} at {result['commit']} on {result['machine']} by benchmarks/cost.py: "
        f"{result['clips']} clips of {result['set']},",
        "heard as streams. Milliseconds of processor time for a second of sound, hearing and searching; in brackets",
        "how many times real time that is.",
        "",
        "| model | search | words wrong | ms a second of sound |",
        "|---|---|--:|--:|",
    ]
    for model, figures in result["models"].items():
        for name, way in figures["ways"].items():
            lines.append(
                f"| {model} | {name} | {100 * way['word_errors']:.1f} % | "
                f"{way['ms_a_second']:.1f} ({1000 / way['ms_a_second']:.0f} x) |"
            )
    return "\n".join([*lines, "", "![words wrong against processor time](cost.png)"]) + "\n"


def draw(result: dict[str, Any], file: Path) -> None:
    """A line a model: greedy first, then ever wider searches, each point with its number of readings."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xlabel="processor time for a second of sound (ms, one core); greedy, and by readings kept in the search",
        ylabel=f"words wrong on {result['set']} (%)",
        xscale="log",
    )
    for number, (model, figures) in enumerate(result["models"].items()):
        ways = figures["ways"]
        costs = [way["ms_a_second"] for way in ways.values()]
        errors = [100 * way["word_errors"] for way in ways.values()]
        axes.plot(costs, errors, "o-", color=f"C{number}", markersize=4, label=model)
        for name, cost, error in zip(ways, costs, errors, strict=True):
            short = name.removeprefix("width ")
            axes.annotate(short, (cost, error), fontsize=7, xytext=(3, 3), textcoords="offset points")
    for cost, what in ((10.0, "100 x real time"), (5.0, "200 x real time")):
        axes.axvline(cost, color="grey", linewidth=0.8, linestyle=":")
        axes.annotate(
            what, (cost, 0), xycoords=("data", "axes fraction"), fontsize=7, rotation=90, xytext=(2, 4),
            textcoords="offset points", color="grey",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    ticks = [1, 2, 3, 5, 10, 20, 30, 50, 100]
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
    dearest = max(way["ms_a_second"] for model in result["models"].values() for way in model["ways"].values())
    axes.set_xlim(1, 1.3 * max(10.0, dearest))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def main() -> int:
    """Measure, draw, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, help="a folder of clips with its manifest")
    parser.add_argument("models", nargs="+", help="names or files; NAME=FILE shows a file under a name")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64, 128, 256])
    parser.add_argument("--limit", type=int, default=100, help="only so many clips")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    named: dict[str, str] = {}
    for model in arguments.models:
        name, _, file = model.partition("=")
        name = name if file else name.removesuffix(".safetensors").rpartition("/")[2]
        if name in named:
            parser.error(f"two models would be called {name!r}: say NAME=FILE")
        named[name] = file or model
    clips = recordings(arguments.clips, arguments.limit)
    models: dict[str, Any] = {}
    for name, file in named.items():
        models[name] = measure(file, clips, arguments.widths)
        print(f"{name}: heard", file=sys.stderr)
    result = {"models": models, "set": arguments.clips.name, "clips": len(clips), **provenance()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "cost.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "cost.md").write_text(table(result))
    draw(result, arguments.out / "cost.png")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
