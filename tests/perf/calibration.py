"""Do word confidences mean what they say? Fits the weights of lm/confidence.py and draws the reliability curve.

    python -m tests.perf.calibration --log-probs FOLDER --manifest MANIFEST [--also FOLDER MANIFEST] [--lm FILE]

Fits on every second clip of the manifest, at several softnesses, and prints the weights to be written into
lm/confidence.py; then measures what lm/confidence.py says now on the other clips and on `--also`, which nothing is
fitted on. Results go to `calibration.json`, `.md` and `.png`.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm import beam, confidence, greedy
from lm.decoders import Decoder, open_decoder
from lm.ngram import NGram
from lm.score import align
from tests.perf.decoding import ALPHABET, softened

SOFTNESSES = (1.0, 1.5, 2.0)
EDGES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
Clip = tuple[NDArray[np.float32], str]


def load(log_probs: Path, manifest: Path) -> list[Clip]:
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    stored = [
        (log_probs / (Path(row["audio"]).stem + ".npy"), row["text"]) for row in rows if row.get("text")
    ]
    clips = [(np.load(path), text) for path, text in stored if path.exists()]
    if not clips:
        sys.exit(
            f"{log_probs} holds no .npy named like the clips of {manifest}; tests.perf.decoding --model makes them"
        )
    return clips


@contextmanager
def listening() -> Iterator[list[Any]]:
    """What the confidence of each word is computed from, word by word, as the decoders come to it."""
    heard: list[Any] = []
    read_words, word_confidence = beam.read_words, greedy.word_confidence

    def beams(*arguments: Any) -> int:
        count = read_words(*arguments)
        heard.extend(arguments[-1][:count, 1:].tolist())
        return count

    def best_labels(*arguments: Any) -> float:
        heard.append(arguments)
        return word_confidence(*arguments)

    beam.read_words, greedy.word_confidence = beams, best_labels
    try:
        yield heard
    finally:
        beam.read_words, greedy.word_confidence = read_words, word_confidence


def hear(
    decoder: Decoder, clips: list[Clip], softness: float
) -> tuple[list[Any], NDArray[np.float64], NDArray[np.bool_]]:
    """Every word heard: what the confidence is computed from, the confidence, and whether it is right."""
    confidences, right = [], []
    with listening() as evidence:
        for frames, text in clips:
            utterance = decoder.start()
            utterance.push(softened(frames, softness) if softness != 1.0 else frames)
            words = utterance.finish()[0].words
            confidences += [word.confidence for word in words]
            steps = align(text.split(), [word.text for word in words])
            right += [step.kind == "same" for step in steps if step.hypothesis is not None]
    return evidence, np.array(confidences), np.array(right)


def inputs(evidence: list[Any]) -> NDArray[np.float64]:
    """What lm/confidence.py weighs, a row for each word."""
    mean, least, letters, language = np.array(evidence, dtype=np.float64).T
    mean, least = np.minimum(mean, confidence.SUREST), np.minimum(least, confidence.SUREST)
    columns = [np.ones_like(mean), np.log(-np.expm1(mean)), np.log(-np.expm1(least)), mean, least]
    columns.append(np.minimum(letters, confidence.MOST_LETTERS))
    if not np.isnan(language).any():
        columns.append(np.maximum(language, confidence.LEAST_LANGUAGE))
    return np.stack(columns, axis=1)


def fit(evidence: list[Any], right: NDArray[np.bool_]) -> list[float]:
    from scipy.optimize import minimize

    rows = inputs(evidence)

    def loss(weights: NDArray[np.float64]) -> float:
        logits = rows @ weights
        return float(np.mean(np.logaddexp(0.0, logits) - right * logits) + 1e-4 * (weights[1:] ** 2).sum())

    return [round(float(weight), 3) for weight in minimize(loss, np.zeros(rows.shape[1])).x]


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
        f"Measured {results['date']} by tests/perf/calibration.py; words heard on clips that nothing was fitted on.",
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
    parser.add_argument("--log-probs", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--also", type=Path, nargs=2, metavar=("FOLDER", "MANIFEST"))
    parser.add_argument("--lm", type=Path, help="a KenLM trie; default: the one in the box")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    ngram = NGram.load(arguments.lm) if arguments.lm else NGram.shipped()
    clips = load(arguments.log_probs, arguments.manifest)
    fitted, kept = clips[::2], clips[1::2]
    decoders = {"beam": open_decoder("beam", ALPHABET, ngram), "greedy": open_decoder("greedy", ALPHABET)}
    weights = {}
    for name, decoder in decoders.items():
        heard = [hear(decoder, fitted, softness) for softness in SOFTNESSES]
        weights[name] = fit(
            list(chain.from_iterable(part[0] for part in heard)), np.concatenate([part[2] for part in heard])
        )
    print("WITH_LANGUAGE =", tuple(weights["beam"]), "\nWITHOUT_LANGUAGE =", tuple(weights["greedy"]))
    curves = {}
    for name, decoder in decoders.items():
        for softness in SOFTNESSES:
            curves[f"{name}, softened {softness}"] = reliability(*hear(decoder, kept, softness)[1:])
        if arguments.also:
            curves[f"{name}, {arguments.also[1].parent.name}"] = reliability(
                *hear(decoder, load(*arguments.also), 1.0)[1:]
            )
    results = {"date": datetime.now(UTC).date().isoformat(), "fitted_now": weights, "curves": curves}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "calibration.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "calibration.md").write_text(markdown(results))
    draw(curves, arguments.out / "calibration.png")
    print(markdown(results))


if __name__ == "__main__":
    main()
