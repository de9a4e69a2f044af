"""Do word confidences mean what they say? Fits the weights of lm/search/confidence.py and draws the reliability curve.

    python -m benchmarks.calibration ../shared/speech --noise ../shared/noise [--model quartznet15x5-en] [--limit N]

Every model hears the clips of some folders as they are and in noise, at 20, 10 and 5 dB in turn: one mapping is to hold
for a model that is nearly always right and for one that is often wrong. The weights are fitted on folders that are not
reported (with noise of the training split), and printed to be written into lm/search/confidence.py; then what
lm/search/confidence.py
says now is measured on others (with noise of the test split), which nothing is fitted on. Results go to
`calibration.json`, `.md` and `.png`.
"""

import argparse
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acoustic import catalogue
from acoustic.features.framing import Samples
from acoustic.runtime import Backend, open_backend
from acoustic.windows import LogProbs
from benchmarks.acoustic import provenance
from benchmarks.shipped_model import noise_bank, noisy
from lm.decoders import Decoder, SearchSettings, open_decoder
from lm.ngram.trie import NGram
from lm.score import align
from lm.search import beam, confidence, greedy
from lm.text.normalize import normalize
from service.audio.files import read_mono
from service.commands.evaluate import recordings
from service.scheduling.device import alphabet_and_search

FITTED = ("test-commonvoice", "an4-train", "train-crowd")
DRAWN = ("beam, dev", "beam, dev, noise", "beam, test-voices", "beam, test-voices, noise")
KEPT = ("dev", "test-clean", "test-voices", "test-noisy", "test-accented", "an4-test")
RATIOS_DB = (20.0, 10.0, 5.0)
EDGES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
Clip = tuple[LogProbs, str]


@dataclass(frozen=True)
class ScoredClip:
    """What the confidence of each word was computed from, the confidence, and whether the word is right."""

    evidence: list[Any]
    confidences: NDArray[np.float64]
    right: NDArray[np.bool_]


def transcribe(backend: Backend, folder: Path, limit: int, bank: Samples | None) -> list[Clip]:
    """What a model makes of a folder's clips; with a bank, in noise."""
    changes = [noisy(bank, ratio, 0) for ratio in RATIOS_DB] if bank is not None else []
    clips = []
    for number, line in enumerate(recordings(folder, limit)):
        sound = read_mono(line["folder"] / line["audio"])
        sound = changes[number % len(changes)](sound) if changes else sound
        clips.append((backend.recording_log_probs(sound), normalize(line["text"])))
    return clips


@contextmanager
def progress() -> Iterator[list[Any]]:
    """What the confidence of each word is computed from, word by word, as the decoders come to it."""
    scored: list[Any] = []
    read_words, word_confidence = beam.read_words, greedy.word_confidence

    def beams(*arguments: Any) -> int:
        count = read_words(*arguments)
        scored.extend(arguments[-1][:count, 1:].tolist())
        return count

    def best_labels(*arguments: Any) -> float:
        scored.append(arguments)
        return word_confidence(*arguments)

    beam.read_words, greedy.word_confidence = beams, best_labels
    try:
        yield scored
    finally:
        beam.read_words, greedy.word_confidence = read_words, word_confidence


def words_of(decoder: Decoder, search: SearchSettings, clips: list[Clip]) -> ScoredClip:
    """Every word that is written."""
    confidences, right = [], []
    with progress() as evidence:
        for log_probs, text in clips:
            utterance = decoder.start(search)
            utterance.push(log_probs)
            words = utterance.finish()[0].words
            confidences += [word.confidence for word in words]
            steps = align(text.split(), [word.text for word in words])
            right += [step.kind == "same" for step in steps if step.hypothesis is not None]
    return ScoredClip(evidence, np.array(confidences), np.array(right))


def inputs(evidence: list[Any]) -> NDArray[np.float64]:
    """What lm/search/confidence.py weighs, a row for each word."""
    mean, least, letters, language = np.array(evidence, dtype=np.float64).T
    mean, least = np.minimum(mean, confidence.MAX_LOG_PEAK), np.minimum(least, confidence.MAX_LOG_PEAK)
    columns = [np.ones_like(mean), np.log(-np.expm1(mean)), np.log(-np.expm1(least)), mean, least]
    columns.append(np.minimum(letters, confidence.MAX_CHARACTERS))
    if not np.isnan(language).any():
        columns.append(np.maximum(language, confidence.MIN_LM_SCORE))
    return np.stack(columns, axis=1)


def fit(scored: list[ScoredClip]) -> list[float]:
    """Weights by which the surer word is never the less clear one."""
    from scipy.optimize import minimize

    rows = np.concatenate([inputs(one.evidence) for one in scored])
    right = np.concatenate([one.right for one in scored])
    bounds = [(None, None), (None, 0.0), (None, 0.0), (0.0, None), (0.0, None), (None, None), (0.0, None)]

    def loss(weights: NDArray[np.float64]) -> float:
        logits = rows @ weights
        return float(np.mean(np.logaddexp(0.0, logits) - right * logits) + 1e-4 * (weights[1:] ** 2).sum())

    return [
        round(float(weight), 3)
        for weight in minimize(loss, np.zeros(rows.shape[1]), bounds=bounds[: rows.shape[1]]).x
    ]


def reliability(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, Any]:
    bins = []
    for low, high in pairwise(EDGES):
        inside = (confidences >= low) & (confidences <= high if high == 1.0 else confidences < high)
        if inside.any():
            bins.append(
                {
                    "from": low,
                    "to": high,
                    "words": int(inside.sum()),
                    "confidence": round(float(confidences[inside].mean()), 4),
                    "right": round(float(right[inside].mean()), 4),
                }
            )
    error = sum(row["words"] * abs(row["confidence"] - row["right"]) for row in bins) / len(right)
    order = np.argsort(np.argsort(confidences))
    wrong = ~right
    area = (order[right].mean() - order[wrong].mean()) / len(right) + 0.5 if wrong.any() else math.nan
    return {
        "words": len(right),
        "right": round(float(right.mean()), 4),
        "mean_confidence": round(float(confidences.mean()), 4),
        "expected_calibration_error": round(error, 4),
        "area_under_the_curve": round(float(area), 4),
        "bins": bins,
    }


def draw(curves: dict[str, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 5.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    for name, curve in curves.items():
        points = [(row["confidence"], row["right"]) for row in curve["bins"] if row["words"] >= 20]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    axes.set(xlabel="confidence", ylabel="share of these words that is right", xlim=(0, 1.01), ylim=(0, 1.01))
    axes.legend()
    figure.savefig(path, dpi=110)


def markdown(results: dict[str, Any]) -> str:
    lines = [
        f"Measured {results['date']} at {results['commit']} on {results['machine']} by benchmarks/calibration.py;",
        "words heard on clips that nothing was fitted on; noise of the test split at 20, 10 and 5 dB in turn.",
        "",
        "| set | words | right | mean confidence | calibration error | area under ROC |",
        "|---|---|---|---|---|---|",
    ]
    for name, curve in results["curves"].items():
        lines.append(
            f"| {name} | {curve['words']} | {100 * curve['right']:.1f} % | {curve['mean_confidence']:.3f} "
            f"| {curve['expected_calibration_error']:.3f} | {curve['area_under_the_curve']:.3f} |"
        )
    first, curve = next(iter(results["curves"].items()))
    lines += [
        "",
        f"{first}, by confidence:",
        "",
        "| confidence | words | mean | right |",
        "|---|---|---|---|",
    ]
    for row in curve["bins"]:
        lines.append(
            f"| {row['from']}-{row['to']} | {row['words']} | {row['confidence']:.3f} | {row['right']:.3f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("speech", type=Path)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], help="besides the one in the box; repeatable")
    parser.add_argument("--limit", type=int, default=100, help="clips of each folder (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    ngram = NGram.shipped()
    fitted: dict[str, list[ScoredClip]] = {"beam": [], "greedy": []}
    curves = {}
    for model in (catalogue.default_name(), *arguments.model):
        backend, (alphabet, search) = open_backend(model, "cpu", None), alphabet_and_search(model)
        decoders = {"beam": open_decoder("beam", alphabet, ngram), "greedy": open_decoder("greedy", alphabet)}
        for split, folders in (("train", FITTED), ("test", KEPT)):
            bank = noise_bank(arguments.noise, split)
            for folder in folders:
                for where in (None, bank):
                    clips = transcribe(backend, arguments.speech / folder, arguments.limit, where)
                    for name, decoder in decoders.items():
                        scored = words_of(decoder, search, clips)
                        if folders is FITTED:
                            fitted[name].append(scored)
                        else:
                            noise = "" if where is None else ", noise"
                            curves[f"{model}, {name}, {folder}{noise}"] = reliability(
                                scored.confidences, scored.right
                            )
    weights = {name: fit(scored) for name, scored in fitted.items()}
    print("WITH_LANGUAGE =", tuple(weights["beam"]), "\nWITHOUT_LANGUAGE =", tuple(weights["greedy"]))
    results = {**provenance(), "fitted_now": weights, "curves": curves}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "calibration.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "calibration.md").write_text(markdown(results))
    drawn = {name: curve for name, curve in curves.items() if name.split(", ", 1)[1] in DRAWN}
    draw(drawn, arguments.out / "calibration.png")
    print(markdown(results))


if __name__ == "__main__":
    main()
