"""Trains the tagger on written text and measures it. One sample in fifty is held out."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lm.errors import LanguageError
from lm.text.punctuation.labels import CAPITALS, IGNORE_INDEX, MARKS, TaggedWords, tagged_sentences
from lm.text.punctuation.model import FILE_FORMAT, KERNEL_SIZE, Punctuator, WordIndex, context_words
from lm.weight_files import write_weights

HELD_OUT_ONE_IN = 50
MAX_SAMPLE_WORDS = 60
BIAS_CANDIDATES = np.arange(-1.0, 3.01, 0.2)


@dataclass(frozen=True)
class PunctuationSettings:
    """Hyperparameters of the network and the training."""

    known_words: int = 12000
    shared_rows: int = 4096
    suffix_rows: int = 2048
    word_width: int = 48
    suffix_width: int = 16
    width: int = 96
    layers: int = 4
    words_per_step: int = 4096
    learning_rate: float = 2e-3
    epochs: int = 1
    seed: int = 1


class Tagger(nn.Module):
    """The network of model.py in PyTorch."""

    def __init__(self, settings: PunctuationSettings, rows: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, settings.word_width, padding_idx=0)
        self.suffixes = nn.Embedding(settings.suffix_rows, settings.suffix_width, padding_idx=0)
        self.enter = nn.Linear(settings.word_width + settings.suffix_width, settings.width)
        self.layers = nn.ModuleList(
            nn.Conv1d(
                settings.width,
                settings.width,
                KERNEL_SIZE,
                padding=KERNEL_SIZE // 2 * 2**layer,
                dilation=2**layer,
            )
            for layer in range(settings.layers)
        )
        self.leave = nn.Linear(settings.width, len(MARKS) + len(CAPITALS))

    def forward(self, rows: Tensor, suffixes: Tensor) -> Tensor:
        """[n] word rows and [n] suffix rows to scores [n, marks + capitals]."""
        hidden = self.enter(torch.cat([self.words(rows), self.suffixes(suffixes)], dim=-1))
        for layer in self.layers:
            hidden = hidden + functional.gelu(layer(hidden.T.unsqueeze(0)), approximate="tanh").squeeze(0).T
        return torch.as_tensor(self.leave(hidden))


def join_sentences(sentences: Iterable[TaggedWords], seed: int) -> Iterator[TaggedWords]:
    """Join consecutive sentences to samples of random length, since an utterance can contain several sentences."""
    rng = random.Random(seed)
    words: list[str] = []
    marks: list[int] = []
    capitals: list[int] = []
    limit = rng.randint(1, MAX_SAMPLE_WORDS)
    for sentence in sentences:
        words += sentence.words
        marks += sentence.marks
        capitals += sentence.capitals
        if len(words) >= limit:
            yield TaggedWords(tuple(words), tuple(marks), tuple(capitals))
            words, marks, capitals = [], [], []
            limit = rng.randint(1, MAX_SAMPLE_WORDS)


def train(
    texts: Sequence[Path], out: Path, settings: PunctuationSettings, progress: Callable[[str], None]
) -> dict[str, float]:
    """Train on the texts and write `out`. Returns precision, recall and F1 on held-out text."""
    progress("reading the texts")
    samples = list(join_sentences(tagged_sentences(texts), settings.seed))
    held_out = [sample for index, sample in enumerate(samples) if index % HELD_OUT_ONE_IN == 0]
    training = [sample for index, sample in enumerate(samples) if index % HELD_OUT_ONE_IN]
    if not training:
        raise LanguageError("there is no text to train on: expected sentences with capitals and punctuation")
    counts = Counter(word for sample in training for word in sample.words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: settings.known_words]
    word_index = WordIndex(tuple(frequent), settings.shared_rows, settings.suffix_rows)
    progress(f"{sum(counts.values()):,} words in {len(training):,} samples")
    torch.manual_seed(settings.seed)
    network = Tagger(settings, word_index.rows)
    batches = _batches(training, word_index, settings)
    optimizer = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=0.01)
    steps = settings.epochs * len(batches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, steps + 1, pct_start=0.1
    )
    started = time.perf_counter()
    for step in range(steps):
        rows, suffixes, marks, capitals = (torch.from_numpy(part) for part in batches[step % len(batches)])
        out_scores = network(rows, suffixes)
        loss = functional.cross_entropy(out_scores[:, : len(MARKS)], marks, ignore_index=IGNORE_INDEX)
        loss = loss + functional.cross_entropy(
            out_scores[:, len(MARKS) :], capitals, ignore_index=IGNORE_INDEX
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            progress(
                f"step {step + 1} of {steps}: loss {loss.item():.3f}, {time.perf_counter() - started:.0f} s"
            )
    _save(out, network, word_index, settings, texts)
    calibration, test = held_out[::2], held_out[1::2]
    calibrate_mark_biases(out, calibration or held_out)
    return measure(Punctuator.load(out), test or held_out)


def calibrate_mark_biases(file: Path, held_out: Sequence[TaggedWords]) -> None:
    """Add a bias to each mark that maximizes the F-measure: rare marks seldom have the highest score."""
    punctuator = Punctuator.load(file)
    scores = np.concatenate([punctuator.scores(sample.words)[0] for sample in held_out])
    true = np.concatenate([np.array(sample.marks) for sample in held_out])
    shift = np.zeros(len(MARKS), dtype=np.float32)

    def f_score(candidate: NDArray[np.float32]) -> float:
        chosen = (scores + candidate).argmax(axis=1)
        correct = chosen == true
        kinds = range(1, len(MARKS))
        scores_by_mark = []
        for kind in kinds:
            predicted, actual = int((chosen == kind).sum()), int((true == kind).sum())
            # The F-measure with beta^2 = 0.5: a wrong mark is worse than a missing one.
            scores_by_mark.append(1.5 * int(correct[chosen == kind].sum()) / max(predicted + 0.5 * actual, 1))
        return sum(scores_by_mark)

    for _ in range(3):  # coordinate ascent, which converges quickly
        for kind in range(1, len(MARKS)):
            tried = [np.where(np.arange(len(MARKS)) == kind, step, shift) for step in BIAS_CANDIDATES]
            shift = max(tried, key=f_score).astype(np.float32)
    punctuator.weights["leave.bias"][: len(MARKS)] += shift
    weights = {name: torch.from_numpy(value).half() for name, value in punctuator.weights.items()}
    write_weights(file, FILE_FORMAT, weights, punctuator.metadata)


def measure(punctuator: Punctuator, held_out: Sequence[TaggedWords]) -> dict[str, float]:
    """Precision, recall and F1 of each mark and of capitals (without the first word of each sentence)."""
    hits: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    actual: Counter[str] = Counter()
    words = 0
    for sample in held_out:
        words += len(sample.words)
        marks, capitals = punctuator.tag(sample.words)
        for mark, true_mark, capital, true_capital in zip(
            marks, sample.marks, capitals, sample.capitals, strict=True
        ):
            pairs = [(MARKS[mark], MARKS[true_mark])]
            if true_capital != IGNORE_INDEX:
                pairs.append(("capital" if capital else "", "capital" if true_capital else ""))
            for chosen, true in pairs:
                predicted[chosen] += 1
                actual[true] += 1
                hits[true] += chosen == true
    figures: dict[str, float] = {"words": words}
    names = {",": "comma", ".": "full_stop", "?": "question_mark", "capital": "capital"}
    for kind, name in names.items():
        precision, recall = hits[kind] / max(predicted[kind], 1), hits[kind] / max(actual[kind], 1)
        figures[f"{name}_precision"] = precision
        figures[f"{name}_recall"] = recall
        figures[f"{name}_f1"] = 2 * precision * recall / max(precision + recall, 1e-9)
    return figures


def _batches(
    training: Sequence[TaggedWords], word_index: WordIndex, settings: PunctuationSettings
) -> list[tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], ...]]:
    """The samples in random order, separated by padding, in batches of about equal length."""
    order = list(range(len(training)))
    random.Random(settings.seed).shuffle(order)
    context = context_words(settings.layers)
    gap, ignored = np.zeros(context, dtype=np.int64), np.full(context, IGNORE_INDEX)
    batches = []
    parts: list[list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]] = [[gap], [gap], [ignored], [ignored]]
    size = 0
    for index in order:
        sample = training[index]
        rows, suffixes = word_index.lookup(sample.words)
        for part, values in zip(
            parts, (rows, suffixes, np.array(sample.marks), np.array(sample.capitals)), strict=True
        ):
            part.append(values)
            part.append(gap if part is parts[0] or part is parts[1] else ignored)
        size += len(rows)
        if size >= settings.words_per_step:
            batches.append(tuple(np.concatenate(part) for part in parts))
            parts, size = [[gap], [gap], [ignored], [ignored]], 0
    return batches or [tuple(np.concatenate(part) for part in parts)]


def _save(
    out: Path, network: Tagger, word_index: WordIndex, settings: PunctuationSettings, texts: Sequence[Path]
) -> None:
    tables = {"words.weight": "words", "suffixes.weight": "suffixes"}
    weights = {tables.get(name, name): value.half() for name, value in network.state_dict().items()}
    metadata = {
        "shape": json.dumps({"shared_rows": settings.shared_rows, "suffix_rows": settings.suffix_rows}),
        "words": " ".join(word_index.words),
        "texts": " ".join(path.name for path in texts),
    }
    write_weights(out, FILE_FORMAT, weights, metadata)
