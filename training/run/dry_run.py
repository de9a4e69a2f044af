"""What a recipe would do, without doing it: model, data, batches, learning rate over time, and how long it
takes.

The time is an estimate: arithmetic of the model against what this machine's matrix products reach (half of
it, as training usually does); the published time, where there is one, stands beside it.
"""

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from acoustic.architectures import published
from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.network import build
from acoustic.parameter_count import parameter_count
from training.augment.config import NO_AUGMENT, TRANSFORMS
from training.data.loader import Loader, Shard
from training.recipe import Recipe
from training.run.build import read_material, schedule_for, shape_of
from training.run.logger import duration

TRAINING_FACTOR = 3
"""Forward, and backward through inputs and weights."""
REACHED_SHARE = 0.5
"""Share of the matrix products' speed that a whole training step reaches."""

NOT_KNOWN = "not known before the data: name its folder with --data, its manifests in data.train"


@dataclass(frozen=True)
class Forecast:
    """Everything that `silica train --dry-run` prints."""

    title: str
    source: str
    model: dict[str, Any]
    data: dict[str, Any]
    batch: dict[str, Any]
    schedule: dict[str, Any]
    time: dict[str, Any]
    published: dict[str, Any]

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    def text(self) -> str:
        """For people."""
        lines = [self.title, f"  {self.source}"]
        for name in ("model", "data", "batch", "schedule", "time", "published"):
            values: dict[str, Any] = getattr(self, name)
            if values:
                lines.append(f"\n{name}")
                lines += [f"  {key.replace('_', ' '):28} {_shown(value)}" for key, value in values.items()]
        return "\n".join(lines)


def forecast(recipe: Recipe, data: Path | None = None, device: str | None = None) -> Forecast:
    """Look ahead. With manifests at hand the figures are theirs; without, the recipe's own hours are
    taken.
    """
    start = recipe.model.start
    config, here = _shape(recipe)
    macs = multiply_adds_per_second(config)
    seconds_per_output = config.frames_per_output / config.frames_per_second
    clips, left_out = [], {}
    if data is not None or any(Path(name).is_absolute() for name in recipe.data.train):
        material = read_material(recipe, config, data, seconds_per_output)
        clips, left_out = material.train, material.left_out
    run, part = recipe.run, recipe.data
    parts = run.processes * run.accumulation
    hours = sum(clip.duration_s for clip in clips) / 3600 if clips else part.hours
    if clips:
        shard = Shard(0, run.processes, run.accumulation)
        feed = Loader(
            clips,
            config.alphabet,
            batch_duration_s=part.batch_duration_s,
            max_batch_size=part.max_batch_size,
            shard=shard,
        )
        steps_per_epoch = len(feed.plan(0))
    else:
        # A batch is limited by its rows (of average length) or by its seconds, whichever comes first.
        average_s = 12.3 if part.max_duration_s > 16 else 0.7 * part.max_duration_s
        steps_per_epoch = max(
            1, round(hours * 3600 / min(part.batch_duration_s, part.max_batch_size * average_s) / parts)
        )
    schedule = schedule_for(recipe, steps_per_epoch)
    epochs = schedule.total_steps / steps_per_epoch
    speed = matrix_speed(device)
    own_s = hours * 3600 * epochs * 2 * macs * TRAINING_FACTOR / (speed * REACHED_SHARE)
    checkpoints = {
        f"rate_at_{100 * tenth // 10}_%": schedule.rate(
            min(schedule.total_steps - 1, schedule.total_steps * tenth // 10)
        )
        for tenth in (0, 1, 3, 5, 8, 10)
    }
    steps = {
        "steps_per_epoch": steps_per_epoch,
        "steps": schedule.total_steps,
        "warmup_steps": schedule.warmup_steps,
        "hold_steps": schedule.hold_steps,
    }
    augment = recipe.augment
    return Forecast(
        recipe.title,
        recipe.source,
        {
            "name": config.name,
            "starts_from": start + ("" if here else " (not here: `silica models` brings it)")
            or "random weights",
            "frozen": ", ".join(recipe.model.freeze) or "nothing",
            "parameters": parameter_count(config),
            "convolutions": convolutions(config),
            "receptive_field_s": round(config.receptive_field_s, 2),
            "output_every_ms": 1000 * seconds_per_output,
            "billion_multiply_adds_per_s": round(macs / 1e9, 3),
        },
        {
            "train": ", ".join(part.train) or "named on the command line",
            "dev": ", ".join(part.dev) or "none",
            "hours": round(hours, 2) or NOT_KNOWN,
            "hours_from": "the manifests" if clips else "the recipe (name --data to count them)",
            "utterances": len(clips) or "not counted",
            "left_out": ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "nothing",
            "utterances_last_s": f"{part.min_duration_s} to {part.max_duration_s}",
            "altered": "no" if augment == NO_AUGMENT else _altered(recipe),
            "feature_masks": _masks(recipe),
        },
        {
            "processes": run.processes,
            "accumulation": run.accumulation,
            "seconds_of_sound": part.batch_duration_s * parts,
            "utterances_at_most": min(part.max_batch_size, int(part.batch_duration_s / part.min_duration_s))
            * parts,
            "precision": run.precision,
        },
        {
            "optimizer": recipe.optimizer.name,
            "decay": schedule.decay,
            "epochs": round(epochs, 1),
            **(steps if hours else {"steps": NOT_KNOWN}),
            **checkpoints,
        },
        _time(own_s, hours * 3600 * epochs, speed, run.processes),
        dict(recipe.published),
    )


def _time(own_s: float, sound_s: float, speed: float, processes: int) -> dict[str, Any]:
    if not sound_s:
        return {"estimate_on_this_machine": NOT_KNOWN}
    return {
        "estimate_on_this_machine": duration(own_s),
        "estimate_s": round(own_s),
        "times_real_time": round(sound_s / max(own_s, 1e-9), 1),
        "matrix_products_gflop_per_s": round(speed / 1e9, 1),
        "with_processes_of_the_recipe": duration(own_s / processes),
    }


def _shape(recipe: Recipe) -> tuple[ModelConfig, bool]:
    """The network's shape, and whether the weights it begins from are here.

    Without them the published network of that name serves: `quartznet15x5` for `quartznet15x5-en`.
    """
    try:
        return shape_of(recipe), True
    except AcousticError:
        name = recipe.model.start.rsplit("-", 1)[0]
        if name not in published:
            raise
        return published[name], False


def multiply_adds_per_second(config: ModelConfig) -> float:
    """Multiply-adds of the network for a second of sound, counted without computing anything."""
    seconds = 4
    frames = int(seconds * config.frames_per_second)
    with torch.device("meta"):
        network = build(replace(config, norm="folded", masks="none")).eval()
        features = torch.zeros(1, config.features.mels, frames)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(features)
    return float(counter.get_total_flops()) / 2 / seconds


def convolutions(config: ModelConfig) -> int:
    """Convolutional layers as the papers count them: sub-blocks and the output, bypasses aside."""
    return sum(block.repeat for block in config.blocks) + 1


def matrix_speed(device: str | None = None, seconds: float = 0.2) -> float:
    """Operations a second of FP32 matrix products here: the quickest of those done in a fifth of a second, so that
    a busy machine is not taken for a slow one."""
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    size = 512 if place.type == "cpu" else 4096
    left = torch.randn(size, size, device=place)
    fastest_s, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until or fastest_s == float("inf"):
        began = time.perf_counter()
        _ = left @ left
        if place.type == "cuda":
            torch.cuda.synchronize()
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return 2 * size**3 / fastest_s


def _altered(recipe: Recipe) -> str:
    names = (*TRANSFORMS, "level", "silence")
    parts = [f"{name} {getattr(recipe.augment, name):.0%}" for name in names if getattr(recipe.augment, name)]
    if recipe.augment.speed:
        low, high = recipe.augment.speed_range
        parts.append(f"speed between {low} and {high}")
    return ", ".join(parts)


def _masks(recipe: Recipe) -> str:
    spec_augment, parts = recipe.spec_augment, []
    if spec_augment.time_masks:
        parts.append(f"{spec_augment.time_masks} of up to {spec_augment.time_width} frames")
    if spec_augment.freq_masks:
        parts.append(f"{spec_augment.freq_masks} of up to {spec_augment.freq_width} bands")
    if spec_augment.cutout_masks:
        parts.append(
            f"{spec_augment.cutout_masks} rectangles of up to {spec_augment.cutout_freq_width} x {spec_augment.cutout_time_width}"
        )
    return ", ".join(parts) or "none"


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
