"""Training and measuring the punctuation tagger on written text; every fiftieth run of sentences is held out."""

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
MAX_RUN_WORDS = 60
SHIFTS = np.arange(-1.0, 3.01, 0.2)


@dataclass(frozen=True)
class PunctuationSettings:
    """Shape and length of a training."""

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
    """The network of model.py, in torch."""

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

    def forward(self, rows: Tensor, endings: Tensor) -> Tensor:
        """[n] word rows and ending rows to [n, marks + capitals]."""
        hidden = self.enter(torch.cat([self.words(rows), self.suffixes(endings)], dim=-1))
        for layer in self.layers:
            hidden = hidden + functional.gelu(layer(hidden.T.unsqueeze(0)), approximate="tanh").squeeze(0).T
        return torch.as_tensor(self.leave(hidden))


def join_sentences(found: Iterable[TaggedWords], seed: int) -> Iterator[TaggedWords]:
    """Sentences in a row joined up to a random length, as utterances come: some one sentence, some many."""
    chance = random.Random(seed)
    words: list[str] = []
    marks: list[int] = []
    capitals: list[int] = []
    limit = chance.randint(1, MAX_RUN_WORDS)
    for sentence in found:
        words += sentence.words
        marks += sentence.marks
        capitals += sentence.capitals
        if len(words) >= limit:
            yield TaggedWords(tuple(words), tuple(marks), tuple(capitals))
            words, marks, capitals = [], [], []
            limit = chance.randint(1, MAX_RUN_WORDS)


def train(
    texts: Sequence[Path], out: Path, settings: PunctuationSettings, progress: Callable[[str], None]
) -> dict[str, float]:
    """Train on the texts, write `out`, and say how well it does on what was held out."""
    progress("reading")
    found = list(join_sentences(tagged_sentences(texts), settings.seed))
    held_out = [run for number, run in enumerate(found) if number % HELD_OUT_ONE_IN == 0]
    learned = [run for number, run in enumerate(found) if number % HELD_OUT_ONE_IN]
    if not learned:
        raise LanguageError(
            "there is no written text to learn from: expected sentences with capitals and full stops"
        )
    counts = Counter(word for run in learned for word in run.words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: settings.known_words]
    numbers = WordIndex(tuple(frequent), settings.shared_rows, settings.suffix_rows)
    progress(f"{sum(counts.values()):,} words in {len(learned):,} runs of sentences")
    torch.manual_seed(settings.seed)
    network = Tagger(settings, numbers.rows)
    batches = _batches(learned, numbers, settings)
    optimizer = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=0.01)
    steps = settings.epochs * len(batches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, steps + 1, pct_start=0.1
    )
    begun = time.perf_counter()
    for step in range(steps):
        rows, endings, marks, capitals = (torch.from_numpy(part) for part in batches[step % len(batches)])
        out_scores = network(rows, endings)
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
                f"step {step + 1} of {steps}: loss {loss.item():.3f}, {time.perf_counter() - begun:.0f} s"
            )
    _save(out, network, numbers, settings, texts)
    chosen_on, measured_on = held_out[::2], held_out[1::2]
    calibrate_mark_biases(out, chosen_on or held_out)
    return measure(Punctuator.load(out), measured_on or held_out)


def calibrate_mark_biases(file: Path, held_out: Sequence[TaggedWords]) -> None:
    """Shift what each mark needs to be put in, so that rare marks come: they are seldom the likeliest."""
    punctuator = Punctuator.load(file)
    scores = np.concatenate([punctuator.scores(run.words)[0] for run in held_out])
    true = np.concatenate([np.array(run.marks) for run in held_out])
    shift = np.zeros(len(MARKS), dtype=np.float32)

    def worth(candidate: NDArray[np.float32]) -> float:
        given = (scores + candidate).argmax(axis=1)
        agree = given == true
        kinds = range(1, len(MARKS))
        worths = []
        for kind in kinds:
            said, meant = int((given == kind).sum()), int((true == kind).sum())
            # F-measure with precision counting twice: a wrong mark disturbs more than a missing one.
            worths.append(1.5 * int(agree[given == kind].sum()) / max(said + 0.5 * meant, 1))
        return sum(worths)

    for _ in range(3):  # one mark after the other, until nothing moves any more
        for kind in range(1, len(MARKS)):
            tried = [np.where(np.arange(len(MARKS)) == kind, step, shift) for step in SHIFTS]
            shift = max(tried, key=worth).astype(np.float32)
    punctuator.weights["leave.bias"][: len(MARKS)] += shift
    weights = {name: torch.from_numpy(value).half() for name, value in punctuator.weights.items()}
    write_weights(file, FILE_FORMAT, weights, punctuator.metadata)


def measure(punctuator: Punctuator, held_out: Sequence[TaggedWords]) -> dict[str, float]:
    """Precision, recall and F1 of each mark and of capitals (words that begin a sentence are not counted)."""
    hits: Counter[str] = Counter()
    said: Counter[str] = Counter()
    meant: Counter[str] = Counter()
    words = 0
    for run in held_out:
        words += len(run.words)
        marks, capitals = punctuator.tag(run.words)
        for mark, true_mark, capital, true_capital in zip(
            marks, run.marks, capitals, run.capitals, strict=True
        ):
            pairs = [(MARKS[mark], MARKS[true_mark])]
            if true_capital != IGNORE_INDEX:
                pairs.append(("capital" if capital else "", "capital" if true_capital else ""))
            for given, true in pairs:
                said[given] += 1
                meant[true] += 1
                hits[true] += given == true
    figures: dict[str, float] = {"words": words}
    names = {",": "comma", ".": "full_stop", "?": "question_mark", "capital": "capital"}
    for kind, name in names.items():
        precision, recall = hits[kind] / max(said[kind], 1), hits[kind] / max(meant[kind], 1)
        figures[f"{name}_precision"] = precision
        figures[f"{name}_recall"] = recall
        figures[f"{name}_f1"] = 2 * precision * recall / max(precision + recall, 1e-9)
    return figures


def _batches(
    learned: Sequence[TaggedWords], numbers: WordIndex, settings: PunctuationSettings
) -> list[tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], ...]]:
    """Runs in random order, one after the other with nothing between, cut into steps of about equal length."""
    order = list(range(len(learned)))
    random.Random(settings.seed).shuffle(order)
    apart = context_words(settings.layers)
    gap, silent = np.zeros(apart, dtype=np.int64), np.full(apart, IGNORE_INDEX)
    batches = []
    parts: list[list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]] = [[gap], [gap], [silent], [silent]]
    size = 0
    for place in order:
        run = learned[place]
        rows, endings = numbers.numbers(run.words)
        for part, values in zip(
            parts, (rows, endings, np.array(run.marks), np.array(run.capitals)), strict=True
        ):
            part.append(values)
            part.append(gap if part is parts[0] or part is parts[1] else silent)
        size += len(rows)
        if size >= settings.words_per_step:
            batches.append(tuple(np.concatenate(part) for part in parts))
            parts, size = [[gap], [gap], [silent], [silent]], 0
    return batches or [tuple(np.concatenate(part) for part in parts)]


def _save(
    out: Path, network: Tagger, numbers: WordIndex, settings: PunctuationSettings, texts: Sequence[Path]
) -> None:
    tables = {"words.weight": "words", "suffixes.weight": "suffixes"}
    weights = {tables.get(name, name): value.half() for name, value in network.state_dict().items()}
    metadata = {
        "shape": json.dumps({"shared_rows": settings.shared_rows, "suffix_rows": settings.suffix_rows}),
        "words": " ".join(numbers.words),
        "texts": " ".join(path.name for path in texts),
    }
    write_weights(out, FILE_FORMAT, weights, metadata)
