"""The last blocks of the model in the box, trained on by themselves: five times as quick as the whole network.

    python scripts/last_blocks.py DATA START --out MODEL.safetensors [--steps 1100] [--rate 6e-4] [--words 0.3]

DATA is the folder that scripts/gather_speech.py makes, START a run's folder or a checkpoint file (or the name of an
installed model). What the blocks before make of the clips in --sets is kept in memory (90 MB an hour of sound) and
heard again and again; with --noise half of the clips lie in noise, and most are louder or softer. A run that is stopped
leaves nothing. Average what comes out with START or another run's end (scripts/mean_weights.py). One core; two with
different seeds may run side by side.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from acoustic import checkpoint
from acoustic.catalogue import find
from acoustic.errors import AcousticError
from training.alteration import NO_ALTERATION
from training.augment import alter
from training.data.manifests import read_manifest
from training.data.noise import read_banks
from training.errors import TrainingError
from training.recipe import load_recipe
from training.release import trained_model
from training.rest import Plan, keep, learn

SETS = ("shared/speech/train-librispeech", "shared/speech/train-crowd")
LONGEST_S = 16.5
NOISY = replace(NO_ALTERATION, noise=0.5, noise_snr_db=(4.0, 25.0), level=0.8, level_db=(-12.0, 18.0))


def noisy(folder: Path, seed: int) -> Callable[[Tensor], Tensor]:
    """Changes one sound after the other, each in its own way."""
    banks, drawn = read_banks(folder, torch.device("cpu")), torch.Generator().manual_seed(seed)
    return lambda sound: alter(sound, torch.tensor([sound.shape[1]]), NOISY, drawn, banks).sound


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("start")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--recipe", default="silica-staged", help="its stages and teacher (default: %(default)s)"
    )
    parser.add_argument("--sets", nargs="+", default=SETS, help="folders below DATA (default: %(default)s)")
    parser.add_argument("--noise", type=Path, help="half of the clips are heard in noise out of this folder")
    parser.add_argument("--most", type=int, default=0, help="take at most so many clips (default: all)")
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--rate", type=float, default=Plan.rate)
    parser.add_argument("--words", type=float, default=Plan.words)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(arguments.seed)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        start = Path(arguments.start)
        student = trained_model(start) if start.exists() else find(arguments.start)
        part = load_recipe(arguments.recipe).stages
        clips = [
            clip
            for name in arguments.sets
            for clip in read_manifest(arguments.data / name)
            if clip.text and clip.duration_s <= LONGEST_S
        ]
        clips = random.Random(arguments.seed).sample(clips, min(arguments.most or len(clips), len(clips)))
        began = time.monotonic()
        kept = []
        change = noisy(arguments.noise, arguments.seed) if arguments.noise else None
        for row in keep(student, part.by[-2] if part.by else 0, clips, change):
            kept.append(row)
            if len(kept) % 500 == 0:
                print(
                    f"{len(kept)} of {len(clips)} clips heard, {time.monotonic() - began:.0f} s", flush=True
                )

        def tell(step: int, missed: float, words: float) -> None:
            left_s = (time.monotonic() - began) / step * (arguments.steps - step)
            print(
                f"step {step} of {arguments.steps} · stage {missed:.3f} · words {words:.3f} · "
                f"{left_s / 60:.0f} min left",
                flush=True,
            )

        began = time.monotonic()
        plan = Plan(arguments.steps, arguments.rate, arguments.words, seed=arguments.seed)
        trained = learn(student, find(part.teacher), part, clips, kept, plan, tell)
        checkpoint.save(arguments.out, trained.config, trained.state, trained.card)
    except (AcousticError, TrainingError, OSError) as error:
        sys.exit(f"last_blocks: {error}")


if __name__ == "__main__":
    main()
