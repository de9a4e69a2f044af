"""WER against processor time of each model, greedy and by beam width, as a plot.

    python -m benchmarks.cost SPEECH/dev silica-streaming-en quartznet15x5-en [--widths 16 64] [--limit 100]

The clips are streamed. The beam search uses the shipped language model and the search settings of the model's card.
Time is the processor time of the acoustic model and the decoder on one core. NAME=FILE adds a model file under a name,
to compare training runs. Results: `cost.json` and `cost.png`.
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
from benchmarks.provenance import provenance
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
class DecoderScore:
    """Errors and processor time of one decoder with one beam width."""

    errors: ErrorCounts = field(default_factory=ErrorCounts)
    cpu_s: float = 0.0


def measure(model: str, clips: Sequence[dict[str, Any]], widths: Sequence[int]) -> dict[str, Any]:
    """WER and processor time per second of audio, by decoder."""
    backend = open_backend(model, "cpu", None)
    alphabet, search = alphabet_and_search(model)
    beam = LanguageModel.load("shipped").decoder("beam", alphabet)
    greedy = open_decoder("greedy", alphabet)
    decoders = {GREEDY: (greedy, SearchSettings())}
    decoders |= {f"width {width}": (beam, replace(search, width=width)) for width in sorted(widths)}
    scores = {name: DecoderScore() for name in decoders}
    acoustic_s = audio_s = 0.0
    for number, line in enumerate([clips[0], *clips]):
        audio, reference = read_mono(line["folder"] / line["audio"]), normalize(line["text"])
        start = time.process_time()
        log_probs = stream_log_probs(backend, audio)
        clip_s = time.process_time() - start
        texts = {}
        for name, (decoder, settings) in decoders.items():
            start = time.process_time()
            utterance = decoder.start(settings)
            utterance.push(log_probs)
            texts[name] = (utterance.finish()[0].text, time.process_time() - start)
        if number == 0:  # warm-up: compilation and loading are not counted
            continue
        acoustic_s += clip_s
        audio_s += len(audio) / RATE
        for name, (text, seconds) in texts.items():
            scores[name].errors += word_errors(reference, text)
            scores[name].cpu_s += seconds
    acoustic_ms = 1000 * acoustic_s / audio_s
    return {
        "acoustic_ms": round(acoustic_ms, 2),
        "audio_s": round(audio_s),
        "decoders": {
            name: {
                "wer": round(score.errors.rate, 4),
                "ms_per_audio_s": round(acoustic_ms + 1000 * score.cpu_s / audio_s, 2),
            }
            for name, score in scores.items()
        },
    }


def markdown(result: dict[str, Any]) -> str:
    """The plotted values as a table, with the speed in multiples of real time."""
    lines = ["| model | decoder | WER | CPU ms per second of audio |", "|---|---|--:|--:|"]
    for model, one in result["models"].items():
        for name, score in one["decoders"].items():
            lines.append(
                f"| {model} | {name} | {100 * score['wer']:.1f} % | "
                f"{score['ms_per_audio_s']:.1f} ({1000 / score['ms_per_audio_s']:.0f} x) |"
            )
    return "\n".join(lines)


def plot(result: dict[str, Any], file: Path) -> None:
    """One line per model: greedy first, then by beam width."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xlabel="CPU time per second of audio (ms, one core); greedy, and by beam width",
        ylabel=f"WER on {result['set']} (%)",
        xscale="log",
    )
    for number, (model, one) in enumerate(result["models"].items()):
        scores = one["decoders"]
        costs = [score["ms_per_audio_s"] for score in scores.values()]
        rates = [100 * score["wer"] for score in scores.values()]
        axes.plot(costs, rates, "o-", color=f"C{number}", markersize=4, label=model)
        for name, cost, rate in zip(scores, costs, rates, strict=True):
            label = name.removeprefix("width ")
            axes.annotate(label, (cost, rate), fontsize=7, xytext=(3, 3), textcoords="offset points")
    for cost, label in ((10.0, "100 x real time"), (5.0, "200 x real time")):
        axes.axvline(cost, color="grey", linewidth=0.8, linestyle=":")
        axes.annotate(
            label, (cost, 0), xycoords=("data", "axes fraction"), fontsize=7, rotation=90, xytext=(2, 4),
            textcoords="offset points", color="grey",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    ticks = [1, 2, 3, 5, 10, 20, 30, 50, 100]
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
    highest = max(
        score["ms_per_audio_s"] for one in result["models"].values() for score in one["decoders"].values()
    )
    axes.set_xlim(1, 1.3 * max(10.0, highest))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def main() -> int:
    """Measure, plot and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, help="folder of clips with a manifest")
    parser.add_argument("models", nargs="+", help="model names or files; NAME=FILE names a file")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64, 128, 256])
    parser.add_argument("--limit", type=int, default=100, help="number of clips (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    named: dict[str, str] = {}
    for model in arguments.models:
        name, _, file = model.partition("=")
        name = name if file else name.removesuffix(".safetensors").rpartition("/")[2]
        if name in named:
            parser.error(f"two models are named {name!r}: use NAME=FILE")
        named[name] = file or model
    clips = recordings(arguments.clips, arguments.limit)
    models: dict[str, Any] = {}
    for name, file in named.items():
        models[name] = measure(file, clips, arguments.widths)
        print(f"{name}: done", file=sys.stderr)
    result = {"models": models, "set": arguments.clips.name, "clips": len(clips), **provenance()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "cost.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, arguments.out / "cost.png")
    print(markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
