"""Runs a recipe in a folder: joins the processes, builds the loop, trains, and reports how it ended."""

import contextlib
import ctypes
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from training.gpu import opus
from training.gpu.bundle import read_bundle
from training.gpu.packed_audio import PackedAudio, PackedFolder
from training.gpu.parts import decoding_processes
from training.recipe import Recipe
from training.run.build import RunOptions, assemble
from training.run.checkpoints import RunFolder
from training.run.distributed import World, distributed_world
from training.run.loop import Loop


@dataclass(frozen=True)
class PackedOptions:
    """A folder that `silica pack` wrote, room on the device for so many hours of it, and processes that decode it."""

    path: Path
    hours: float
    workers: int


def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    data: Path | None = None,
    packed: PackedOptions | None = None,
    device: str | None = None,
    options: RunOptions = RunOptions(),  # noqa: B008 (frozen)
    as_json: bool = False,
    evaluate_first: bool = False,
) -> int:
    """Train by a recipe in a folder; 0 when the run came to its end, 3 when it stopped before (it can be continued).
    GraphCaptureError when CUDA graphs fail: only a new process, without graphs, can use the device then.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.captureWarnings(True)
    # Denormal numbers do not matter and take a CPU a hundred times as long.
    torch.set_flush_denormal(True)
    keep_memory()
    with contextlib.ExitStack() as stack:
        # The processes are forked before CUDA is initialized.
        opened = open_packed(packed, stack) if packed else None
        world = stack.enter_context(distributed_world(device))
        if world.is_main:
            stack.enter_context(RunFolder(folder).exclusive())
        loop = assemble(recipe, folder, data=data, packed=opened, options=options, world=world)
        if world.is_main:
            _announce(loop, recipe, folder, world)
        if world.device.type == "cuda" and world.size == 1 and options.graphs and loop.source.shapes:
            loop.capture()
        if isinstance(loop.source, PackedAudio):
            deadline = options.deadline
            loop.source.wait(deadline.last_s if deadline else lambda: math.inf)
        if evaluate_first and loop.progress.step == 0 and loop.evaluate:
            loop.validate()
        progress = loop.run()
    if world.is_main:
        result = {
            "folder": str(folder),
            "finished": progress.finished,
            "step": progress.step,
            "audio_hours": round(progress.audio_s / 3600, 3),
            "best_dev_wer": progress.best_rate,
            "skipped_steps": progress.skipped,
        }
        if as_json:
            print(json.dumps(result))  # noqa: T201 (the verb's answer)
        else:
            loop.watch.say(_ending(result, folder))
    return 0 if progress.finished else 3


def open_packed(packed: PackedOptions, stack: contextlib.ExitStack) -> PackedFolder:
    """A packed folder, with processes that decode its parts until the stack ends."""
    opus.library(packed.path)  # a missing library is reported before anything else happens
    bundle = read_bundle(packed.path)
    map_jobs = stack.enter_context(decoding_processes(packed.workers))
    return PackedFolder(packed.path, bundle, map_jobs, packed.hours)


def _announce(loop: Loop, recipe: Recipe, folder: Path, world: World) -> None:
    loop.watch.say(f"{recipe.title}: {loop.config.name} in {folder}, {loop.precision.name}")
    if world.size != recipe.run.processes:
        pieces = recipe.run.accumulation * recipe.run.processes // world.size or 1
        loop.watch.say(
            f"the recipe is meant for {recipe.run.processes} processes, here are {world.size}: for its batch, set "
            f"run.accumulation to {pieces}"
        )
    if loop.progress.step:
        total = "" if loop.settings.deadline else f" of {loop.schedule.total_steps:,}"
        loop.watch.say(f"continuing at step {loop.progress.step:,}{total}")


def keep_memory() -> None:
    """Tell the C library (glibc's) to keep large pieces that are freed: handing each back to the system and asking for
    it again costs a step on a CPU some six per cent of its time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**30)


def _ending(result: dict[str, object], folder: Path) -> str:
    words = (
        "finished" if result["finished"] else f"stopped at step {result['step']}, continue with the same line"
    )
    best = result["best_dev_wer"]
    if isinstance(best, float):
        words += f"; best on dev: {100 * best:.2f} % of words wrong, in {folder / 'best.safetensors'}"
    return words
