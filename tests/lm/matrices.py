"""Log-probabilities for decoder tests, from text or random, and a brute-force sum over all CTC alignments."""

import itertools
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float32]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)


def random_frames(
    generator: np.random.Generator, frames: int, classes: int, sharpness: float
) -> NDArray[np.float32]:
    return log_softmax(generator.normal(size=(frames, classes)) * sharpness)


def frames_for(
    text: str, alphabet: str, generator: np.random.Generator, sharpness: float = 8.0
) -> NDArray[np.float32]:
    """Frames as a network outputs them for a text: a few frames per character, blanks between, noise everywhere."""
    labels = []
    before = ""
    for character in text:
        labels += [len(alphabet)] * int(generator.integers(0, 3))
        if character == before:
            labels.append(len(alphabet))
        labels += [alphabet.index(character)] * int(generator.integers(1, 3))
        before = character
    logits = generator.normal(size=(len(labels), len(alphabet) + 1))
    logits[np.arange(len(labels)), labels] += sharpness
    return log_softmax(logits)


def all_alignments(frames: NDArray[np.float32], alphabet: str) -> dict[str, float]:
    """The probability of every text, as the sum over its alignments. Repeated and outer spaces are ignored."""
    totals: dict[str, float] = defaultdict(float)
    values = np.exp(frames.astype(np.float64))
    blank = len(alphabet)
    for alignment in itertools.product(range(blank + 1), repeat=len(frames)):
        collapsed = [label for label, _ in itertools.groupby(alignment) if label != blank]
        text = " ".join("".join(alphabet[label] for label in collapsed).split())
        totals[text] += float(np.prod([values[frame, label] for frame, label in enumerate(alignment)]))
    return dict(totals)
