"""One sitting of a run: join the processes, put the recipe together, train, say how it ended."""

import contextlib
import ctypes
import json
import logging
from pathlib import Path

import torch

from training.recipe import Recipe
from training.run.build import assemble
from training.run.checkpoints import RunFolder
from training.run.distributed import distributed_world


def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    data: Path | None = None,
    device: str | None = None,
    stop_after_s: float | None = None,
    as_json: bool = False,
    evaluate_first: bool = False,
) -> int:
    """Train by a recipe in a folder; 0 when the run came to its end, 3 when it stopped before (it can be
    continued).
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.captureWarnings(True)
    # Numbers too small to matter take a CPU a hundred times as long.
    torch.set_flush_denormal(True)
    keep_memory()
    with (
        distributed_world(device) as world,
        RunFolder(folder).exclusive() if world.is_main else contextlib.nullcontext(),
    ):
        loop = assemble(recipe, folder, data=data, world=world, stop_after_s=stop_after_s)
        if world.is_main:
            loop.watch.say(f"{recipe.title}: {loop.config.name} in {folder}, {loop.precision.name}")
            if world.size != recipe.run.processes:
                pieces = recipe.run.accumulation * recipe.run.processes // world.size or 1
                loop.watch.say(
                    f"the recipe is meant for {recipe.run.processes} processes, here are {world.size}: for its "
                    f"batch, set run.accumulation to {pieces}"
                )
            if loop.progress.step:
                loop.watch.say(f"continuing at step {loop.progress.step:,} of {loop.schedule.total_steps:,}")
        if evaluate_first and loop.progress.step == 0 and loop.evaluate:
            loop.hear()
        progress = loop.run()
    if world.is_main:
        result = {
            "folder": str(folder),
            "finished": progress.finished,
            "step": progress.step,
            "hours_heard": round(progress.seconds_heard / 3600, 3),
            "best_dev_wer": progress.best_rate,
            "skipped_steps": progress.skipped,
        }
        if as_json:
            print(json.dumps(result))  # noqa: T201 (the verb's answer)
        else:
            loop.watch.say(_ending(result, folder))
    return 0 if progress.finished else 3


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
