"""Training throughput as in NVIDIA's DeepLearningExamples tables: sequences a second at padded, equal
lengths.

Run it by hand: `python -m benchmarks.training --models jasper10x5dr quartznet15x5`. On a GPU it compares
FP32, TF32, BF16 and FP16 (published, one A100, mixed precision: Jasper 64 to 76 sequences/s, QuartzNet 89);
on a CPU it takes small models on one thread and counts processor time, so that a busy machine does not spoil it, and
measures each also with PyTorch's own depthwise convolution and CTC in place of the compiled kernels.
Sound is made up, so that no disk is in the figures; features, loss, backward pass and optimizer are. The inference
tables are `benchmarks/acoustic.py --gpu`.
"""

import argparse
import contextlib
import functools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from acoustic.architectures import ARCHITECTURES
from acoustic.config import ModelConfig
from acoustic.network import build, modules
from benchmarks.acoustic import provenance
from training.augment.config import NO_AUGMENT, AugmentConfig, SpecAugmentConfig
from training.data.loader import Batch
from training.objectives import objective
from training.objectives.objective import CtcObjective, compute_loss
from training.optim.optimizers import build_optimizer
from training.run.precision import Precision

PUBLISHED = {"jasper10x5dr": {32: 64.3, 64: 75.6}, "quartznet15x5": {72: 88.7}}
"""Sequences a second of one A100 in mixed precision, by batch (tables of the two resources)."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    device: str
    precision: str
    batch: int
    seconds: float
    sequences_per_s: float
    times_real_time: float
    ms_per_step: float
    slowest_ms: float
    plain_ms_per_step: float | None
    peak_memory_gib: float | None
    published_a100: float | None


def made_up(config: ModelConfig, rows: int, seconds: float, device: torch.device) -> Batch:
    """A batch of noise with transcripts of usual length (15 characters a second)."""
    generator = torch.Generator().manual_seed(1)
    samples = int(seconds * config.features.sample_rate)
    labels = int(15 * seconds)
    return Batch(
        0.1 * torch.randn(rows, samples, generator=generator),
        torch.full((rows,), samples),
        torch.randint(0, config.blank, (rows * labels,), generator=generator),
        torch.full((rows,), labels),
        tuple(map(str, range(rows))),
        1,
    ).to(device)


@contextlib.contextmanager
def plain_pytorch() -> Iterator[None]:
    """Without the kernels that are compiled for CPUs."""
    theirs = functools.partial(F.ctc_loss, reduction="none", zero_infinity=True)

    def ctc(scores: Tensor, outputs: Tensor, targets: Tensor, lengths: Tensor, blank: int) -> Tensor:
        return theirs(scores.float().transpose(0, 1), targets, outputs, lengths, blank)

    with (
        mock.patch.object(modules, "uses_compiled_depthwise", lambda *_: False),
        mock.patch.object(objective, "ctc", ctc),
    ):
        yield


@dataclass(frozen=True)
class Case:
    """What is measured."""

    model: str
    precision: str
    rows: int
    seconds: float
    steps: int
    warmup: int
    device: torch.device
    altered: bool


def measure(case: Case) -> Row:
    """Whole training steps, on a CPU also those of plain PyTorch."""
    mean, slowest = step_s(case)
    cuda = case.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    plain = None
    if not cuda:
        with plain_pytorch():
            plain = 1000 * step_s(case)[0]
    return Row(
        case.model,
        torch.cuda.get_device_name() if cuda else "CPU",
        case.precision,
        case.rows,
        case.seconds,
        case.rows / mean,
        case.rows * case.seconds / mean,
        1000 * mean,
        1000 * slowest,
        plain,
        memory,
        PUBLISHED.get(case.model, {}).get(case.rows),
    )


def step_s(case: Case) -> tuple[float, float]:
    """How long a step takes, and the slowest; the first ones are not counted."""
    config, device = ARCHITECTURES[case.model], case.device
    precision = Precision(case.precision, device)
    precision.switch_tf32()
    torch.backends.cudnn.benchmark = True
    model = build(config).to(device).train()
    optimizer = build_optimizer("novograd", model, learning_rate=0.001, weight_decay=0.001)
    objective = CtcObjective(
        config,
        device,
        augment=AugmentConfig() if case.altered else NO_AUGMENT,
        spec_augment=SpecAugmentConfig(time_masks=2, freq_masks=2),
    )
    scaler = precision.scaler()
    batch = made_up(config, case.rows, case.seconds, device)
    times = []
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for step in range(case.warmup + case.steps):
        began = clock()
        optimizer.zero_grad(set_to_none=True)
        with precision.region():
            loss = compute_loss(objective, model, objective.prepare(batch))
        scaler.scale(loss.total / case.rows).backward()
        scaler.step(optimizer)
        scaler.update()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if step >= case.warmup:
            times.append(clock() - began)
    # On a GPU the average, as published; on a CPU the quickest step: whatever else runs can only add to it.
    return (statistics.fmean(times) if device.type == "cuda" else min(times)), max(times)


def main() -> int:
    """Print the table, and one JSON line a measurement with --json."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=["jasper10x5dr", "quartznet15x5"] if cuda else ["silica-small"]
    )
    parser.add_argument(
        "--precisions", nargs="+", default=["fp32", "tf32", "bf16", "fp16"] if cuda else ["fp32", "bf16"]
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 64, 72] if cuda else [4])
    parser.add_argument(
        "--seconds", type=float, default=16.7 if cuda else 8.0, help="padded length, as published"
    )
    parser.add_argument("--steps", type=int, default=30 if cuda else 5)
    parser.add_argument("--warmup", type=int, default=10 if cuda else 2)
    parser.add_argument(
        "--altered", action="store_true", help="with the whole chain of alterations on the device"
    )
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    if not arguments.json:
        origin = provenance()
        print(f"{origin['date']}, {origin['commit']}, {origin['machine']}, PyTorch {origin['torch']}\n")
        print(
            "| model | precision | batch | seconds | sequences/s | x real time | ms a step | in plain PyTorch | GiB "
            "| one A100, AMP |"
        )
        print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in arguments.models:
        for rows in arguments.batches:
            for precision in arguments.precisions:
                try:
                    row = measure(
                        Case(
                            name,
                            precision,
                            rows,
                            arguments.seconds,
                            arguments.steps,
                            arguments.warmup,
                            torch.device(arguments.device),
                            arguments.altered,
                        )
                    )
                except torch.cuda.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    print(
                        f"{name} {precision} batch {rows}: does not fit the device's memory", file=sys.stderr
                    )
                    continue
                if arguments.json:
                    print(json.dumps(asdict(row)))
                    continue
                shown = (
                    row.model,
                    row.precision,
                    row.batch,
                    row.seconds,
                    f"{row.sequences_per_s:.2f}",
                    f"{row.times_real_time:.1f}",
                    f"{row.ms_per_step:.0f}",
                    "–" if row.plain_ms_per_step is None else f"{row.plain_ms_per_step:.0f}",
                    "–" if row.peak_memory_gib is None else f"{row.peak_memory_gib:.1f}",
                    row.published_a100 or "–",
                )
                print(f"| {' | '.join(map(str, shown))} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
