"""`train_recipe`: join the process group, build the run, train, report the result."""

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
    """Train a recipe in a run folder. Returns 0 if the run is finished, 3 if it stopped earlier and can be resumed."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.captureWarnings(True)
    # Arithmetic on denormal numbers is up to a hundred times slower on a CPU.
    torch.set_flush_denormal(True)
    keep_freed_memory()
    with (
        distributed_world(device) as world,
        RunFolder(folder).exclusive() if world.is_main else contextlib.nullcontext(),
    ):
        loop = assemble(recipe, folder, data=data, world=world, stop_after_s=stop_after_s)
        if world.is_main:
            loop.watch.message(f"{recipe.title}: {loop.config.name} in {folder}, {loop.precision.name}")
            if world.size != recipe.run.processes:
                pieces = recipe.run.accumulation * recipe.run.processes // world.size or 1
                loop.watch.message(
                    f"the recipe is for {recipe.run.processes} processes, this run has {world.size}: set "
                    f"run.accumulation={pieces} for the same batch"
                )
            if loop.progress.step:
                loop.watch.message(
                    f"resuming at step {loop.progress.step:,} of {loop.schedule.total_steps:,}"
                )
        if evaluate_first and loop.progress.step == 0 and loop.evaluate:
            loop.hear()
        progress = loop.run()
    if world.is_main:
        result = {
            "folder": str(folder),
            "finished": progress.finished,
            "step": progress.step,
            "audio_hours": round(progress.seconds_heard / 3600, 3),
            "best_dev_wer": progress.best_rate,
            "skipped_steps": progress.skipped,
        }
        if as_json:
            print(json.dumps(result))  # noqa: T201 (the output of the command)
        else:
            loop.watch.message(_summary(result, folder))
    return 0 if progress.finished else 3


def keep_freed_memory() -> None:
    """Make glibc's malloc keep large freed blocks: returning them to the system costs 6 % of a CPU training step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**30)


def _summary(result: dict[str, object], folder: Path) -> str:
    text = (
        "finished"
        if result["finished"]
        else f"stopped at step {result['step']}, run the same command to resume"
    )
    best = result["best_dev_wer"]
    if isinstance(best, float):
        text += f"; best dev WER {100 * best:.2f} %, in {folder / 'best.safetensors'}"
    return text
