"""Calibration of word confidences: fits the weights of lm/search/confidence.py and measures the reliability curve.

    python -m benchmarks.calibration SPEECH --noise NOISE [--model quartznet15x5-en] [--limit N]

Every model transcribes the clips clean and with noise at 20, 10 and 5 dB, so that one mapping serves accurate and
inaccurate models. The weights are fitted on folders that are not reported, with the training split of the noise, and
printed for lm/search/confidence.py. The confidences of the current weights are then measured on other folders with the
test split of the noise. Results: `calibration.json` and `calibration.png`.
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
from benchmarks.provenance import provenance
from benchmarks.shipped_model import add_noise, load_noise
from lm.decoders import Decoder, SearchSettings, open_decoder
from lm.ngram.trie import NGram
from lm.score import align
from lm.search import beam, confidence, greedy
from lm.text.normalize import normalize
from service.audio.files import read_mono
from service.commands.evaluate import recordings
from service.scheduling.device import alphabet_and_search

FIT_FOLDERS = ("test-commonvoice", "an4-train", "train-crowd")
PLOTTED = ("beam, dev", "beam, dev, noise", "beam, test-voices", "beam, test-voices, noise")
TEST_FOLDERS = ("dev", "test-clean", "test-voices", "test-noisy", "test-accented", "an4-test")
SNRS_DB = (20.0, 10.0, 5.0)
BIN_EDGES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
Clip = tuple[LogProbs, str]


@dataclass(frozen=True)
class ScoredWords:
    """For each word of several clips: the features of its confidence, the confidence, and whether it is correct."""

    features: list[Any]
    confidences: NDArray[np.float64]
    correct: NDArray[np.bool_]


def log_probs_of(backend: Backend, folder: Path, limit: int, noise: Samples | None) -> list[Clip]:
    """Log-probabilities and reference texts of a folder's clips, with noise if given."""
    changes = [add_noise(noise, snr, 0) for snr in SNRS_DB] if noise is not None else []
    clips = []
    for number, line in enumerate(recordings(folder, limit)):
        audio = read_mono(line["folder"] / line["audio"])
        audio = changes[number % len(changes)](audio) if changes else audio
        clips.append((backend.recording_log_probs(audio), normalize(line["text"])))
    return clips


@contextmanager
def record_features() -> Iterator[list[Any]]:
    """Records the features that the decoders compute word confidences from, by wrapping their functions."""
    recorded: list[Any] = []
    read_words, word_confidence = beam.read_words, greedy.word_confidence

    def beam_features(*arguments: Any) -> int:
        count = read_words(*arguments)
        recorded.extend(arguments[-1][:count, 1:].tolist())
        return count

    def greedy_features(*arguments: Any) -> float:
        recorded.append(arguments)
        return word_confidence(*arguments)

    beam.read_words, greedy.word_confidence = beam_features, greedy_features
    try:
        yield recorded
    finally:
        beam.read_words, greedy.word_confidence = read_words, word_confidence


def score_words(decoder: Decoder, search: SearchSettings, clips: list[Clip]) -> ScoredWords:
    """Decodes the clips and aligns the words with the references."""
    confidences, correct = [], []
    with record_features() as features:
        for log_probs, text in clips:
            utterance = decoder.start(search)
            utterance.push(log_probs)
            words = utterance.finish()[0].words
            confidences += [word.confidence for word in words]
            steps = align(text.split(), [word.text for word in words])
            correct += [step.kind == "same" for step in steps if step.hypothesis is not None]
    return ScoredWords(features, np.array(confidences), np.array(correct))


def design_matrix(features: list[Any]) -> NDArray[np.float64]:
    """The inputs of the logistic regression in lm/search/confidence.py, one row per word."""
    mean, lowest, characters, lm_score = np.array(features, dtype=np.float64).T
    mean, lowest = np.minimum(mean, confidence.MAX_LOG_PEAK), np.minimum(lowest, confidence.MAX_LOG_PEAK)
    columns = [np.ones_like(mean), np.log(-np.expm1(mean)), np.log(-np.expm1(lowest)), mean, lowest]
    columns.append(np.minimum(characters, confidence.MAX_CHARACTERS))
    if not np.isnan(lm_score).any():
        columns.append(np.maximum(lm_score, confidence.MIN_LM_SCORE))
    return np.stack(columns, axis=1)


def fit(scored: list[ScoredWords]) -> list[float]:
    """Fits the weights. Their signs are constrained, so that confidence rises with the acoustic and LM scores."""
    from scipy.optimize import minimize

    rows = np.concatenate([design_matrix(one.features) for one in scored])
    correct = np.concatenate([one.correct for one in scored])
    bounds = [(None, None), (None, 0.0), (None, 0.0), (0.0, None), (0.0, None), (None, None), (0.0, None)]

    def loss(weights: NDArray[np.float64]) -> float:
        logits = rows @ weights
        return float(np.mean(np.logaddexp(0.0, logits) - correct * logits) + 1e-4 * (weights[1:] ** 2).sum())

    return [
        round(float(weight), 3)
        for weight in minimize(loss, np.zeros(rows.shape[1]), bounds=bounds[: rows.shape[1]]).x
    ]


def reliability(confidences: NDArray[np.float64], correct: NDArray[np.bool_]) -> dict[str, Any]:
    """Reliability bins, expected calibration error and ROC AUC."""
    bins = []
    for low, high in pairwise(BIN_EDGES):
        inside = (confidences >= low) & (confidences <= high if high == 1.0 else confidences < high)
        if inside.any():
            bins.append(
                {
                    "from": low,
                    "to": high,
                    "words": int(inside.sum()),
                    "confidence": round(float(confidences[inside].mean()), 4),
                    "correct": round(float(correct[inside].mean()), 4),
                }
            )
    error = sum(row["words"] * abs(row["confidence"] - row["correct"]) for row in bins) / len(correct)
    ranks = np.argsort(np.argsort(confidences))
    wrong = ~correct
    auc = (ranks[correct].mean() - ranks[wrong].mean()) / len(correct) + 0.5 if wrong.any() else math.nan
    return {
        "words": len(correct),
        "correct": round(float(correct.mean()), 4),
        "mean_confidence": round(float(confidences.mean()), 4),
        "expected_calibration_error": round(error, 4),
        "roc_auc": round(float(auc), 4),
        "bins": bins,
    }


def plot(curves: dict[str, dict[str, Any]], path: Path) -> None:
    """The reliability curves of some sets."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 5.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    for name, curve in curves.items():
        points = [(row["confidence"], row["correct"]) for row in curve["bins"] if row["words"] >= 20]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    axes.set(xlabel="confidence", ylabel="fraction of correct words", xlim=(0, 1.01), ylim=(0, 1.01))
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def markdown(results: dict[str, Any]) -> str:
    """The results of every set, and the bins of the first."""
    lines = [
        "| set | words | correct | mean confidence | calibration error | ROC AUC |",
        "|---|---|---|---|---|---|",
    ]
    for name, curve in results["curves"].items():
        lines.append(
            f"| {name} | {curve['words']} | {100 * curve['correct']:.1f} % | {curve['mean_confidence']:.3f} "
            f"| {curve['expected_calibration_error']:.3f} | {curve['roc_auc']:.3f} |"
        )
    first, curve = next(iter(results["curves"].items()))
    lines += [
        "",
        f"{first}, by confidence:",
        "",
        "| confidence | words | mean | correct |",
        "|---|---|---|---|",
    ]
    for row in curve["bins"]:
        lines.append(
            f"| {row['from']}-{row['to']} | {row['words']} | {row['confidence']:.3f} | {row['correct']:.3f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Fit, measure and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("speech", type=Path, help="folder with the test folders")
    parser.add_argument("--noise", type=Path, required=True, help="folder of noise with a manifest")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        help="a model to measure as well as the shipped one; repeatable",
    )
    parser.add_argument("--limit", type=int, default=100, help="clips per folder (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    ngram = NGram.shipped()
    fit_words: dict[str, list[ScoredWords]] = {"beam": [], "greedy": []}
    curves = {}
    for model in (catalogue.default_name(), *arguments.model):
        backend, (alphabet, search) = open_backend(model, "cpu", None), alphabet_and_search(model)
        decoders = {"beam": open_decoder("beam", alphabet, ngram), "greedy": open_decoder("greedy", alphabet)}
        for split, folders in (("train", FIT_FOLDERS), ("test", TEST_FOLDERS)):
            all_noise = load_noise(arguments.noise, split)
            for folder in folders:
                for noise in (None, all_noise):
                    clips = log_probs_of(backend, arguments.speech / folder, arguments.limit, noise)
                    for name, decoder in decoders.items():
                        scored = score_words(decoder, search, clips)
                        if folders is FIT_FOLDERS:
                            fit_words[name].append(scored)
                        else:
                            suffix = "" if noise is None else ", noise"
                            curves[f"{model}, {name}, {folder}{suffix}"] = reliability(
                                scored.confidences, scored.correct
                            )
    weights = {name: fit(scored) for name, scored in fit_words.items()}
    print("WITH_LANGUAGE =", tuple(weights["beam"]), "\nWITHOUT_LANGUAGE =", tuple(weights["greedy"]))
    results = {**provenance(), "weights": weights, "curves": curves}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "calibration.json").write_text(json.dumps(results, indent=1) + "\n")
    plotted = {name: curve for name, curve in curves.items() if name.split(", ", 1)[1] in PLOTTED}
    plot(plotted, arguments.out / "calibration.png")
    print(markdown(results))


if __name__ == "__main__":
    main()
