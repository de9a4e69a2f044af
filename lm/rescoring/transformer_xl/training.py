"""Training from text on one thread or many: segments in order along parallel streams, checkpoints, resume.

Matrices are learned with Muon (Jordan et al. 2024, orthogonalized momentum), the rest with AdamW. The learning rate
is a function of the step alone (warm-up, level, linear fall to nothing over the last part), so a run may be resumed
with another number of steps. Lines held out are those that the n-gram's build holds out too, so both compare.
"""

import io
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from acoustic.files import write_file
from lm.errors import LanguageError
from lm.ngram.build import Perplexity
from lm.rescoring.transformer_xl.config import TransformerConfig
from lm.rescoring.transformer_xl.model import TransformerXL
from lm.rescoring.transformer_xl.storage import load_model, save_model
from lm.rescoring.transformer_xl.vocabulary import Vocabulary
from lm.text.corpus import is_held_out, normalized_lines

WEIGHTS, WEIGHTS_8_BIT, STATE, TRAINING_TOKENS, HELD_OUT_TEXT = (
    "transformer-xl.safetensors",
    "transformer-xl-8-bits.safetensors",
    "training-state.pt",
    "learned.npy",
    "measured.txt",
)
# A sentence longer than this is measured as if it ended here.
MAX_MEASURED_WORDS = 250


@dataclass(frozen=True)
class TrainingSettings:
    """How to learn; the shape is TransformerConfig."""

    steps: int = 6000
    streams: int = 32
    learning_rate: float = 3e-3
    warm_up_steps: int = 100
    decay_share: float = 0.5
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    # How often the memory is emptied, so that a sentence that stands alone is no surprise.
    memory_reset_share: float = 0.2
    # Matrices are multiplied in 16 bits: four times faster on CPUs that can, as good here.
    bfloat16: bool = False
    report_every: int = 100
    save_every: int = 100
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.steps, self.streams) < 1:
            raise LanguageError("a training takes at least one step and one stream")
        if not 0.0 < self.learning_rate < math.inf:
            raise LanguageError(f"a learning rate of {self.learning_rate}: expected a number above 0")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm = min(1.0, (step + 1) / self.warm_up_steps)
        fall = min(1.0, (self.steps - step) / max(1.0, self.decay_share * self.steps))
        return self.learning_rate * warm * max(fall, 0.0)


def prepare(texts: Sequence[Path], folder: Path, size: int, progress: Callable[[str], None]) -> Vocabulary:
    """Text to numbers, once: one line in a hundred is measured on, the rest learned from."""
    folder.mkdir(parents=True, exist_ok=True)
    words_file = folder / "vocabulary.json"
    asked = {"texts": [[path.name, path.stat().st_size] for path in texts if path.is_file()], "size": size}
    if words_file.is_file():
        kept = json.loads(words_file.read_text())
        begun = (folder / STATE).is_file()
        if begun and kept.get("texts", asked["texts"]) != asked["texts"]:
            raise LanguageError(f"{folder} holds a training on other texts: name those, or another --out")
        if begun or {name: kept.get(name) for name in asked} == asked:
            return Vocabulary(kept["words"], kept["unknown_kinds"])
    learned: list[str] = []
    measured: list[str] = []
    for path in texts:
        progress(f"reading {path.name}")
        for line in normalized_lines([path]):
            (measured if is_held_out(line) else learned).append(line)
    vocabulary = Vocabulary.from_counts(Counter(word for line in learned for word in line.split()), size)
    stored = io.BytesIO()
    np.save(stored, vocabulary.encode_lines(learned))
    # numpy's own writing does not say that a disk is full
    (folder / TRAINING_TOKENS).write_bytes(stored.getbuffer())
    (folder / HELD_OUT_TEXT).write_text("".join(f"{line}\n" for line in measured))
    # Last and whole: where it is, the rest is.
    write_file(
        words_file,
        json.dumps({"words": vocabulary.words, "unknown_kinds": vocabulary.unknown_kinds, **asked}),
    )
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
    text = np.load(folder / TRAINING_TOKENS, mmap_mode="r")
    torch.manual_seed(settings.seed)
    network = TransformerXL(config)
    step = 0
    if resume and (folder / STATE).is_file():
        network, _ = load_model(folder / WEIGHTS)
        config = network.config
    network.train()
    optimizers = _optimizers(network, settings)
    if resume and (folder / STATE).is_file():
        state = torch.load(folder / STATE, weights_only=True)
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        step = int(state["step"])
        progress(f"going on from step {step}")
    streams = _streams(text, settings.streams)
    memory = network.empty_memory(settings.streams)
    begun, losses = time.perf_counter(), []
    while step < settings.steps:
        words, targets, fresh = _segment(streams, step, config.segment)
        if fresh or random.Random(f"{settings.seed} {step}").random() < settings.memory_reset_share:
            memory = network.empty_memory(settings.streams)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = settings.rate_at(step)
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.bfloat16):
            found, memory = network.log_probs(words, targets, memory)
        loss = -found.mean()
        if not math.isfinite(loss.item()):
            raise LanguageError(
                f"the loss is {loss.item()} at step {step}: lower the learning rate, then resume"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
        step += 1
        losses.append(loss.item())
        if step % settings.report_every == 0 or step == settings.steps:
            speed = len(losses) * words.numel() / (time.perf_counter() - begun)
            mean = sum(losses) / len(losses)
            progress(f"step {step} of {settings.steps}: perplexity {math.exp(mean):.1f}, {speed:.0f} words/s")
            begun, losses = time.perf_counter(), []
        if step % settings.save_every == 0 or step == settings.steps:
            try:
                save_model(folder / WEIGHTS, network, vocabulary)
                _save_state(
                    folder / STATE, {"step": step, "optimizers": [one.state_dict() for one in optimizers]}
                )
            except (LanguageError, OSError) as error:
                if step == settings.steps:
                    raise
                progress(f"nothing could be kept ({error}): what was kept before stays, training goes on")
    network.eval()
    return network


def _save_state(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all; PyTorch's own writing has other words for a full disk."""
    written = io.BytesIO()
    torch.save(state, written)
    write_file(path, written.getvalue())


def _optimizers(network: TransformerXL, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers, AdamW for word vectors, norms and biases; one learning rate fits both."""
    hidden = {id(part.weight) for part in network.modules() if isinstance(part, torch.nn.Linear)}
    matrices = [weights for weights in network.parameters() if id(weights) in hidden and weights.dim() == 2]
    rest = [weights for weights in network.parameters() if id(weights) not in hidden or weights.dim() != 2]
    rate, decay = settings.learning_rate, settings.weight_decay
    return [
        torch.optim.Muon(matrices, rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, rate, betas=(0.9, 0.98), weight_decay=decay, fused=True),
    ]


@torch.inference_mode()
def measure(
    network: TransformerXL, vocabulary: Vocabulary, lines: Sequence[str], batch: int = 32
) -> Perplexity:
    """Perplexity of sentences that stand alone, in an n-gram's unit: each word and the end of the sentence.

    A word outside the vocabulary costs its share of all that <unk> stands for.
    """
    network.eval()
    rows = sorted((vocabulary.encode(line)[:MAX_MEASURED_WORDS] for line in lines), key=len)
    total = total_known = 0.0
    words = unknown = 0
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        longest = max(map(len, part)) + 1
        ends = torch.tensor([len(row) + 1 for row in part])
        padded = torch.tensor(
            [[vocabulary.end, *row] + [vocabulary.end] * (longest - len(row)) for row in part]
        )
        targets = padded[:, 1:]
        found, _ = network.log_probs(padded[:, :-1], targets, network.empty_memory(len(part)))
        counted = torch.arange(longest) < ends.unsqueeze(1)
        strange = (targets == vocabulary.unknown) & counted
        missing = int(strange.sum())
        total += float(found[counted].sum()) - missing * math.log(vocabulary.unknown_kinds)
        total_known += float(found[counted & ~strange].sum())
        words, unknown = words + int(ends.sum()), unknown + missing
    return Perplexity(
        words=words - len(rows),
        lines=len(rows),
        unknown=unknown,
        perplexity=math.exp(-total / max(words, 1)),
        perplexity_known=math.exp(-total_known / max(words - unknown, 1)),
    )


def _streams(text: NDArray[np.int32], streams: int) -> NDArray[np.int32]:
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
