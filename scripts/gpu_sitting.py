"""The model in the box trained on for one sitting on one GPU, ten thousand times as fast as people speak.

    python scripts/gpu_sitting.py OUT --packed FOLDER --start MODEL [--minutes 7.5 | --until FILE] [--seconds 1200]
        [--rate 3.5e-3] [--set augment.noise=0.4 ...] [--resume] [--dtype fp16] [--pieces 2]

FOLDER is what scripts/pack_sitting.py made: models.pt and noise.zip must be there, training begins with the first part
that is, and further parts are taken in as they come, however they are copied. MODEL is a checkpoint file, a run's
folder or an installed model that has learnt its stages: here nothing is given to them, and all alteration is on from
the first step. The rate falls in a line to the end, which is so many minutes after the start, or what FILE says in
seconds since 1970 (it may be changed meanwhile); 4 seconds before it the sitting ends. Every 45 seconds
OUT/mean.safetensors is the average of the weights; at the end OUT/last.safetensors stands beside it. The same line
with --resume goes on from that average, on other batches.

All sound lies on the device. Each shape of batch is played as CUDA graphs; where those cannot be made (too little
memory, say), and on a CPU, the same steps go one operation at a time. An H100 takes 1,200 s of sound in 100 ms; of
its memory 37 GB are held, 9 of them for 80 hours of sound. Where Silica is not installed, PYTHONPATH=. finds it.

With --pieces 2 the average comes in two halves as well, for a way that lets only small files through. Join them again
with `cat mean-4611.?of2 > mean.safetensors`, where 4611 is the step that both were written at. FP16 and two
pieces make 11.5 MB each. Average the result with its beginning (scripts/average_checkpoints.py), then release it.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sitting import opus
from sitting.hearing import Ear
from sitting.learner import Learner, card_of
from sitting.models import MODELS, Packed, read_models
from sitting.parts import NOISE, decoded, read_part
from sitting.sound import LOUDEST, Drawn, Sound, batch_shapes
from torch import Tensor

from acoustic import checkpoint
from acoustic.catalogue import find
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from training.augment import NoiseBanks
from training.augment.config import NO_SPEC_AUGMENT
from training.distillation.blockwise import BlockwiseObjective, BlockwiseTeacher, attach_stages
from training.errors import TrainingError
from training.optim.optimizers import build_optimizer
from training.recipe import Recipe, with_settings
from training.run.finetune import start_from
from training.run.precision import Precision, fastest_precision
from training.run.prefetch import prefetch

MARGIN_S = 4.0
"""The sitting ends so long before its end, to write what it made."""
SAVE_EVERY_S = 45.0
AHEAD = 4
MEAN, LAST = "mean.safetensors", "last.safetensors"


@dataclass
class End:
    """When the sitting ends, in seconds since 1970; with a file, what that says now."""

    at: float
    file: Path | None = None

    def now(self) -> float:
        if self.file is not None:
            try:
                self.at = float(self.file.read_text())
            except (OSError, ValueError):
                if not self.at:
                    raise TrainingError(
                        f"{self.file} says no end: expected seconds since 1970, as `date +%s` says them."
                    ) from None
        return self.at


def say(what: str) -> None:
    print(what, flush=True)


def starting(arguments: argparse.Namespace) -> Checkpoint:
    """The average of an earlier sitting, or the model that is named."""
    mean = arguments.out / MEAN
    if mean.exists() and not arguments.resume:
        raise TrainingError(f"{mean} is there already: --resume goes on from it, another OUT begins anew.")
    if mean.exists():
        say(f"goes on from {mean}")
        return checkpoint.load(mean)
    if Path(arguments.start).is_dir():
        from training.export import (
            trained_model,
        )  # with all that serves a model, which a lent machine may lack

        return trained_model(Path(arguments.start))
    return find(arguments.start)


def checked(recipe: Recipe) -> Recipe:
    """What a sitting does not do is refused."""
    if recipe.spec_augment.time_masks or recipe.spec_augment.freq_masks or recipe.spec_augment.cutout_masks:
        raise TrainingError("This recipe masks features, which a sitting does not: set its masks to 0.")
    if recipe.optimizer.grad_clip:
        raise TrainingError(
            "This recipe clips gradients, which a sitting does not: set optimizer.grad_clip=0."
        )
    return recipe


def read_noise(folder: Path, packed: Packed, device: torch.device, pool: Any) -> NoiseBanks:
    """The noise and the impulse responses that came along."""
    noise = None
    if packed.recipe.data.noise:
        part = read_part(folder / NOISE)
        sound = torch.cat([torch.from_numpy(samples) for samples in decoded(part, pool, folder)])
        noise = sound.to(device).float() / LOUDEST * packed.noise_top
    return NoiseBanks(noise, None if packed.responses is None else packed.responses.to(device))


@dataclass(frozen=True)
class Sitting:
    """All that is put together before the first step."""

    start: Checkpoint
    sound: Sound
    ear: Ear
    learner: Learner


def prepare(arguments: argparse.Namespace, device: torch.device, pool: Any) -> Sitting:
    packed = read_models(arguments.packed / MODELS)
    recipe = checked(with_settings(packed.recipe, arguments.set))
    start = starting(arguments)
    model, config = start_from(start)
    model = model.to(device).train()
    part = recipe.blockwise
    attach_stages(model, part.student_blocks)
    teacher = BlockwiseTeacher(packed.teacher, part.teacher_blocks, device, config.features)
    teacher.scales, teacher.shares = packed.scales, [share.to(device) for share in packed.shares]
    banks = read_noise(arguments.packed, packed, device, pool)
    objective = BlockwiseObjective(  # says which stages do not fit
        config=config,
        device=device,
        teacher=teacher,
        part=part,
        alteration=replace(recipe.augment, ramp_start=1.0),
        banks=banks,
        masks=NO_SPEC_AUGMENT,
    )
    shapes = batch_shapes(config, recipe.augment, arguments.seconds, recipe.data.max_duration_s)
    hours, seed = arguments.hours, recipe.run.seed
    sound = Sound(
        arguments.packed, shapes, config.alphabet, device, pool=pool, hours=hours, seed=seed, tell=say
    )
    say(f"{recipe.augment}")
    optimizer = build_optimizer(
        recipe.optimizer.name,
        model,
        learning_rate=arguments.rate,
        betas=(recipe.optimizer.betas[0], recipe.optimizer.betas[1]) if recipe.optimizer.betas else None,
        weight_decay=recipe.optimizer.weight_decay,
        momentum=recipe.optimizer.momentum,
    )
    every, decay = config.frames_per_output, recipe.run.ema_decay
    ear = Ear(teacher, objective.front_end, shapes, recipe.augment, banks, every, device)
    learner = Learner(model, config, teacher, part, optimizer, device, decay)
    return Sitting(start, sound, ear, learner)


def capture(sitting: Sitting) -> None:
    """Graphs of all shapes, before anything else happens on the device."""
    began = time.monotonic()
    sitting.ear.capture()
    sitting.learner.capture(sitting.sound.shapes)
    held = torch.cuda.memory_reserved() / 1e9
    say(f"graphs of all shapes in {time.monotonic() - began:.1f} s, {held:.1f} GB held")


def write(arguments: argparse.Namespace, sitting: Sitting, hours: float, *, ended: bool) -> None:
    """The average, in pieces too if so asked; at the end the last weights."""
    learner, start = sitting.learner, sitting.start
    card = card_of(start.card, learner.steps, hours)

    def save(name: str, state: dict[str, Tensor]) -> Path:
        path = arguments.out / name
        try:
            return checkpoint.save(path, learner.config, state, card, arguments.dtype)
        except AcousticError as error:
            if arguments.dtype == "fp32":
                raise
            say(f"{error} In FP32 instead.")
            return checkpoint.save(path, learner.config, state, card)

    mean = save(MEAN, learner.state(averaged=True))
    if arguments.pieces > 1:
        cut(mean, card["sitting"]["steps"], arguments.pieces)
    if ended:
        save(LAST, learner.state(averaged=False))


def cut(mean: Path, step: int, pieces: int) -> None:
    """The file in pieces that are called by its step: pieces of two averages are not mistaken for one."""
    content, stem = mean.read_bytes(), mean.stem
    size = -(-len(content) // pieces)
    written = set()
    for number in range(pieces):
        path = mean.with_name(f"{stem}-{step}.{number}of{pieces}")
        partial = path.with_name(f".{path.name}.part")
        partial.write_bytes(content[number * size : (number + 1) * size])
        partial.replace(path)
        written.add(path)
    for old in set(mean.parent.glob(f"{stem}-*.?of*")) - written:
        old.unlink()


def train(arguments: argparse.Namespace, sitting: Sitting, end: End) -> None:
    """Steps until the end."""
    learner, first = sitting.learner, sitting.start.card.get("sitting", {}).get("steps", 0)

    def batches() -> Iterator[Drawn]:
        step = first
        while True:
            yield sitting.sound.draw(step)
            step += 1

    np.finfo(np.float32), np.finfo(np.float64)  # looked up here: the thread ahead has no smallest numbers
    coming = prefetch(batches(), sitting.ear.hear, depth=AHEAD)
    began = saved = time.time()
    seconds, waited, since = 0.0, 0.0, 0
    sums = torch.zeros(1 + len(learner.part.student_blocks), device=learner.device)
    try:
        while learner.steps < arguments.steps:
            asked = time.time()
            heard = next(coming)
            now, last = time.time(), end.now() - MARGIN_S
            if now > last:
                break
            waited += now - asked
            left = max(0.0, last - now) / max(1.0, last - began)
            rate = arguments.rate * left * min(1.0, (learner.steps + 1) / arguments.warm)
            sums = sums + learner.step(heard, rate)
            seconds, since = seconds + heard.seconds, since + 1
            if learner.steps % arguments.log_every == 0 or learner.steps <= 3:
                words, *stages = (value / since for value in sums.tolist())
                took = time.time() - began
                say(
                    f"step {learner.steps} · {took:.1f} s · rate {rate:.2e} · {seconds / 3600:.1f} h · "
                    f"{seconds / took:.0f} x · waited {waited / took:.0%} · words {words:.3f} · stages "
                    + " ".join(f"{value:.3f}" for value in stages)
                )
                sums, since = torch.zeros_like(sums), 0
            if time.time() > saved + SAVE_EVERY_S:
                try:
                    write(arguments, sitting, seconds / 3600, ended=False)
                except (AcousticError, OSError) as error:
                    say(f"not written, and tried again in {SAVE_EVERY_S:.0f} s: {error}")
                saved = time.time()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        coming.close()
    if not learner.steps:
        raise TrainingError("The sitting ended before its first step: nothing is written.")
    write(arguments, sitting, seconds / 3600, ended=True)
    say(f"{learner.steps} steps, {seconds / 3600:.2f} h in {time.time() - began:.1f} s")


def run(arguments: argparse.Namespace) -> None:
    end = End(0.0 if arguments.until else time.time() + 60 * arguments.minutes, arguments.until)
    end.now()
    opus.library(arguments.packed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    deaf = (
        signal.signal,
        (signal.SIGINT, signal.SIG_IGN),
    )  # who stops this process stops the others through it
    # Before CUDA is there, which does not survive in a copy of the process.
    with multiprocessing.get_context("fork").Pool(arguments.processes, *deaf) as pool:
        device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        Precision(fastest_precision(device), device).set_tf32()
        sitting = prepare(arguments, device, pool)
        if device.type == "cuda" and not arguments.eager:
            try:
                capture(sitting)
            except Exception:  # memory, a kernel, a driver: eager steps may do
                traceback.print_exc()
                pool.terminate()
                again_without_graphs(end)
        sitting.sound.wait(end.now() - MARGIN_S)
        ended = threading.Event()
        watcher = threading.Thread(target=sitting.sound.watch, args=(ended,), daemon=True)
        watcher.start()
        try:
            train(arguments, sitting, end)
        finally:
            ended.set()
            watcher.join()


def again_without_graphs(end: End) -> None:
    """In a fresh process: what a failed capture leaves on the device is of no use."""
    say("no graphs can be made: one operation at a time")
    minutes = [] if end.file else ["--minutes", f"{(end.at - time.time()) / 60:.3f}"]
    os.execv(sys.executable, [sys.executable, *sys.argv, "--eager", *minutes])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add: Callable[..., Any] = parser.add_argument
    add("out", type=Path)
    add("--packed", type=Path, required=True, help="the folder that scripts/pack_sitting.py made")
    add("--start", required=True, help="a checkpoint file, a run's folder or an installed model")
    add("--resume", action="store_true", help="go on from OUT/mean.safetensors where it is there")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--minutes", type=float, default=7.5, help="how long, from now (default: %(default)s)")
    ends.add_argument("--until", type=Path, metavar="FILE", help="holds the end, in seconds since 1970")
    add("--steps", type=int, default=10**9, help="at most so many")
    add("--seconds", type=float, default=1200.0, help="of sound in a step (default: %(default)s)")
    add("--hours", type=float, default=80.0, help="of sound there is room for (default: %(default)s)")
    add("--rate", type=float, default=3.5e-3, help="at its highest (default: %(default)s)")
    add("--warm", type=int, default=100, help="steps in which it rises (default: %(default)s)")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="another value in the recipe")
    add("--device", help="cuda or cpu (default: cuda where it is there)")
    add("--eager", action="store_true", help="no graphs")
    add("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="that decode sound")
    add("--dtype", choices=("fp32", "fp16"), default="fp32", help="of what is written (default: %(default)s)")
    add("--pieces", type=int, default=1, help="of the average (default: %(default)s)")
    add("--log-every", type=int, default=20, help="steps (default: %(default)s)")
    try:
        run(parser.parse_args())
    except (AcousticError, TrainingError) as error:
        sys.exit(f"gpu_sitting: {error}")


if __name__ == "__main__":
    main()
