"""Training from text on one thread or many: segments in order along parallel streams, checkpoints, resume.

The learning rate is a function of the step alone (warm-up, level, linear fall to nothing over the last part),
so a run may be resumed with another number of steps.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lm.building import Perplexity
from lm.corpus import HELD_OUT_ONE_IN, normal_lines
from lm.errors import LanguageError
from lm.transformer_xl.model import Memory, TransformerConfig, TransformerXL
from lm.transformer_xl.storage import load, save
from lm.transformer_xl.vocabulary import Vocabulary

WEIGHTS, STATE, LEARNED, MEASURED = (
    "transformer-xl.safetensors",
    "training-state.pt",
    "learned.npy",
    "measured.npy",
)
BLOCK_LINES = 100


@dataclass(frozen=True)
class TrainingSettings:
    """How to learn; the shape is TransformerConfig."""

    steps: int = 6000
    streams: int = 8
    learning_rate: float = 2e-3
    warm_up_steps: int = 200
    falling_share: float = 0.5
    weight_decay: float = 0.01
    gradient_limit: float = 1.0
    report_every: int = 100
    save_every: int = 500
    seed: int = 1

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm = min(1.0, (step + 1) / self.warm_up_steps)
        fall = min(1.0, (self.steps - step) / max(1.0, self.falling_share * self.steps))
        return self.learning_rate * warm * max(fall, 0.0)


def prepare(texts: Sequence[Path], folder: Path, size: int, progress: Callable[[str], None]) -> Vocabulary:
    """Text to numbers, once: of a hundred blocks of lines, one is measured on, the rest learned from."""
    folder.mkdir(parents=True, exist_ok=True)
    words_file = folder / "vocabulary.json"
    if words_file.is_file():
        kept = json.loads(words_file.read_text())
        return Vocabulary(kept["words"], kept["unknown_kinds"])
    learned: list[str] = []
    measured: list[str] = []
    for path in texts:
        progress(f"reading {path.name}")
        for number, line in enumerate(normal_lines([path])):
            # Blocks, because this model reads on from sentence to sentence.
            held_out = number // BLOCK_LINES % HELD_OUT_ONE_IN == HELD_OUT_ONE_IN - 1
            (measured if held_out else learned).append(line)
    vocabulary = Vocabulary.from_counts(Counter(word for line in learned for word in line.split()), size)
    np.save(folder / LEARNED, vocabulary.encode_lines(learned))
    np.save(folder / MEASURED, vocabulary.encode_lines(measured))
    words_file.write_text(json.dumps({"words": vocabulary.words, "unknown_kinds": vocabulary.unknown_kinds}))
    return vocabulary


def train(
    folder: Path,
    vocabulary: Vocabulary,
    config: TransformerConfig,
    settings: TrainingSettings,
    progress: Callable[[str], None],
    resume: bool = False,
) -> TransformerXL:
    """Learn until `settings.steps`; every `save_every` steps the folder holds all that resuming needs."""
    text = np.load(folder / LEARNED, mmap_mode="r")
    torch.manual_seed(settings.seed)
    network = TransformerXL(config)
    step = 0
    if resume and (folder / STATE).is_file():
        network, _ = load(folder / WEIGHTS)
        config = network.config
    network.train()
    optimiser = torch.optim.AdamW(
        network.parameters(), settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    if resume and (folder / STATE).is_file():
        state = torch.load(folder / STATE, weights_only=True)
        optimiser.load_state_dict(state["optimiser"])
        step = int(state["step"])
        progress(f"going on from step {step}")
    streams = _streams(text, settings.streams, config.segment)
    memory = network.empty_memory(settings.streams)
    begun, losses = time.perf_counter(), []
    while step < settings.steps:
        words, targets, fresh = _segment(streams, step, config.segment)
        if fresh:
            memory = network.empty_memory(settings.streams)
        for group in optimiser.param_groups:
            group["lr"] = settings.rate_at(step)
        found, memory = network.log_probs(words, targets, memory)
        loss = -found.mean()
        if not math.isfinite(loss.item()):
            raise LanguageError(
                f"the loss is {loss.item()} at step {step}: lower the learning rate, then resume"
            )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.gradient_limit)
        optimiser.step()
        step += 1
        losses.append(loss.item())
        if step % settings.report_every == 0 or step == settings.steps:
            speed = len(losses) * words.numel() / (time.perf_counter() - begun)
            mean = sum(losses) / len(losses)
            progress(f"step {step} of {settings.steps}: perplexity {math.exp(mean):.1f}, {speed:.0f} words/s")
            begun, losses = time.perf_counter(), []
        if step % settings.save_every == 0 or step == settings.steps:
            save(folder / WEIGHTS, network, vocabulary)
            torch.save({"step": step, "optimiser": optimiser.state_dict()}, folder / "training-state.fresh")
            (folder / "training-state.fresh").replace(folder / STATE)
    network.eval()
    return network


@torch.inference_mode()
def measure(
    network: TransformerXL, vocabulary: Vocabulary, text: NDArray[np.int32], streams: int = 8
) -> Perplexity:
    """Perplexity with the memory running on; an unknown word costs its share of all that <unk> stands for."""
    network.eval()
    rows = _streams(text, min(streams, max(1, len(text) // 64)), network.config.segment)
    memory: Memory = network.empty_memory(len(rows))
    total = total_known = 0.0
    words = unknown = ends = 0
    for start in range(0, rows.shape[1] - 1, network.config.segment):
        part = torch.from_numpy(rows[:, start : start + network.config.segment + 1].astype(np.int64))
        targets = part[:, 1:]
        found, memory = network.log_probs(part[:, :-1], targets, memory)
        strange = targets == vocabulary.unknown
        total += float(found.sum()) - int(strange.sum()) * math.log(vocabulary.unknown_kinds)
        total_known += float(found[~strange].sum())
        words, unknown = words + targets.numel(), unknown + int(strange.sum())
        ends += int((targets == vocabulary.end).sum())
    return Perplexity(
        words=words - ends,
        lines=ends,
        unknown=unknown,
        perplexity=math.exp(-total / max(words, 1)),
        perplexity_known=math.exp(-total_known / max(words - unknown, 1)),
    )


def _streams(text: NDArray[np.int32], streams: int, segment: int) -> NDArray[np.int32]:
    length = len(text) // streams
    if length < 2:
        raise LanguageError(f"{len(text)} words are too few for {streams} streams; give more text")
    return np.asarray(text[: streams * length]).reshape(streams, length)


def _segment(streams: NDArray[np.int32], step: int, segment: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """The words of a step and what follows each; whether the streams begin anew here."""
    each = max(1, (streams.shape[1] - 1) // segment)
    start = step % each * segment
    part = torch.from_numpy(streams[:, start : start + segment + 1].astype(np.int64))
    return part[:, :-1], part[:, 1:], start == 0
