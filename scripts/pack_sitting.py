"""Everything that scripts/gpu_sitting.py trains on, in files small enough to be carried to a GPU one by one.

    python scripts/pack_sitting.py DATA OUT [--recipe silica-streaming] [--kilobits 13] [--part-megabytes 58]
        [--first-megabytes 6]

DATA is the folder that scripts/gather_speech.py makes, labelled as scripts/train_shipped_model.sh does it. OUT gets
models.pt
(recipe, teacher, impulse responses), noise.zip, and part-00.zip, part-01.zip ...: the recipe's clips, shuffled, as
Opus packets with their texts, 11 hours in 58 MB at 13 kbit/s. Training begins with the first part there and the others
on their way; the first is small, as models.pt (37 MB), noise.zip and the network to begin with travel beside it. A
copy of libopus comes along for a machine that has none. Of what a machine says (folders called spoken...) a share is
taken. What is left out is said. Two processes take about ten seconds for an hour of sound.
"""

import argparse
import collections
import multiprocessing
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sitting import opus
from sitting.models import MODELS, write_models
from sitting.parts import NOISE, PackedClip, part_files, part_name, write_part
from sitting.sound import LOUDEST

from acoustic.catalogue import find
from acoustic.constants import SAMPLE_RATE
from acoustic.errors import AcousticError
from training.data.audio import ClipError, read_clip
from training.data.loader import encode
from training.data.manifests import Clip, read_manifest
from training.data.noise import read_noise_banks
from training.distillation.blockwise import BlockwiseTeacher
from training.errors import TrainingError
from training.recipe import Recipe, load_recipe, with_settings
from training.run.build import read_material, shape_of

NOISE_KILOBITS = 24
LOUDEST_NOISE = 12.0
"""In deviations: what is louder is cut off."""
SEED = 5
SPOKEN = "spoken"
SPARE_S = 0.1
"""So much longer than its manifest says a clip may be."""
TELL_EVERY_S = 10.0


def whole(samples: np.ndarray, top: float = 1.0) -> opus.Samples:
    """As whole numbers, `top` the loudest."""
    return np.round(samples.clip(-top, top) / top * LOUDEST).astype(np.int16)


def start_encoder(kilobits: float, max_duration_s: float) -> None:
    """In each process."""
    global _encoder, _longest
    _encoder, _longest = opus.Encoder(round(kilobits * 1000)), int((max_duration_s + SPARE_S) * SAMPLE_RATE)


def packed(path: Path) -> tuple[int, bytes] | str:
    """A clip's length and its packets; or what is wrong with it."""
    try:
        samples = whole(read_clip(path))
    except (ClipError, OSError) as error:
        return str(error)
    if len(samples) > _longest:
        return f"{path} is {len(samples) / SAMPLE_RATE:.1f} s long, longer than its manifest says."
    return len(samples), _encoder.encode(samples)


def chosen(clips: Sequence[Clip], share_spoken: float) -> list[tuple[Clip, float]]:
    """Every clip once, with how often the recipe names it; of what a machine says a share."""
    named = collections.Counter(clip.audio for clip in clips)
    own: list[Clip] = []
    spoken: list[Clip] = []
    for clip in {clip.audio: clip for clip in clips}.values():
        machine = any(part.startswith(SPOKEN) for part in clip.audio.parts[-3:-1])
        (spoken if machine else own).append(clip)
    draw = random.Random(SEED)
    some = draw.sample(spoken, round(share_spoken * len(spoken)))
    taken = [(clip, float(named[clip.audio])) for clip in (*own, *some)]
    draw.shuffle(taken)
    say(f"{len(taken)} clips are taken, {len(some)} of the {len(spoken)} that a machine says among them")
    return taken


def write_parts(
    out: Path,
    clips: Sequence[tuple[Clip, float]],
    results: Iterator[tuple[int, bytes] | str],
    first: int,
    most: int,
) -> int:
    """A part of at most `first` bytes, then parts of at most `most`; how many clips could not be read."""
    delay = opus.Encoder(16_000).delay_samples
    rows: list[PackedClip] = []
    packets: list[bytes] = []
    written = broken = size = 0
    seconds, began = 0.0, time.monotonic()
    told = began

    def flush() -> None:
        nonlocal rows, packets, size, written
        path = out / part_name(written)
        held = write_part(path, rows, packets, delay)
        hours = sum(row.samples for row in rows) / SAMPLE_RATE / 3600
        say(f"{path.name}: {len(rows)} clips, {hours:.2f} h, {held / 1e6:.1f} MB")
        rows, packets, size, written = [], [], 0, written + 1

    for done, ((clip, weight), result) in enumerate(zip(clips, results, strict=True), 1):
        if isinstance(result, str):
            say(f"left out: {result}")
            broken += 1
            continue
        samples, made = result
        row = PackedClip(samples, len(made), clip.text, weight)
        more = len(made) + len((clip.text or "").encode()) + 40
        if rows and size + more > (most if written else first):
            flush()
        rows.append(row)
        packets.append(made)
        size += more
        seconds += samples / SAMPLE_RATE
        if time.monotonic() > told + TELL_EVERY_S:
            told = time.monotonic()
            say(f"{done} of {len(clips)} clips, {seconds / 3600:.1f} h, {told - began:.0f} s")
    if rows:
        flush()
    if not written:
        raise TrainingError("None of the clips can be read: there is nothing to pack.")
    return broken


def write_rest(out: Path, recipe: Recipe, data: Path, clips: Sequence[Clip]) -> None:
    """The teacher and what it measures, and the noise."""
    config, teacher = shape_of(recipe), find(recipe.blockwise.teacher)
    measured = BlockwiseTeacher(
        teacher, recipe.blockwise.teacher_blocks, torch.device("cpu"), config.features
    )
    measured.measure(clips)
    responses = None
    (out / NOISE).unlink(missing_ok=True)
    if recipe.data.noise:
        banks = read_noise_banks(data / recipe.data.noise, torch.device("cpu"))
        assert banks.noise is not None
        responses, noise = banks.responses, whole(banks.noise.numpy(), LOUDEST_NOISE)
        encoder = opus.Encoder(NOISE_KILOBITS * 1000, complexity=5)
        made = encoder.encode(noise)
        held = write_part(out / NOISE, [PackedClip(len(noise), len(made))], [made], encoder.delay_samples)
        say(f"{NOISE}: {len(noise) / SAMPLE_RATE / 60:.0f} minutes, {held / 1e6:.1f} MB")
    held = write_models(out / MODELS, recipe, teacher, measured, responses, LOUDEST_NOISE)
    say(f"{MODELS}: {held / 1e6:.1f} MB")


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def pack(arguments: argparse.Namespace) -> None:
    out, data = arguments.out, arguments.data
    carried = opus.where()
    recipe = with_settings(load_recipe(arguments.recipe), arguments.set)
    if not recipe.blockwise.teacher:
        raise TrainingError(
            f"{arguments.recipe} has no stages: scripts/gpu_sitting.py learns stage by stage."
        )
    find(recipe.blockwise.teacher)  # first of all: it says how to get one
    config = shape_of(recipe)
    material = read_material(recipe, config, data, config.frames_per_output / config.frames_per_second)
    listed = sum(len(read_manifest(data / name)) for name in recipe.data.train)
    wordless = listed - len(material.train) - sum(material.left_out.values())
    for reason, count in {
        **material.left_out,
        "no words known: `silica pseudo-label` finds some": wordless,
    }.items():
        if count:
            say(f"left out: {count} clips, {reason}")
    clips = chosen(material.train, arguments.share_spoken)
    for clip, _ in clips:
        encode(clip, config.alphabet)  # names what the model cannot write
    out.mkdir(parents=True, exist_ok=True)
    for old in part_files(out):
        old.unlink()
    if carried is not None:
        shutil.copy(carried, out / opus.CARRIED)
    start = (arguments.kilobits, recipe.data.max_duration_s)
    # Before PyTorch has threads of its own, which do not survive in a copy of the process.
    with multiprocessing.get_context("fork").Pool(arguments.processes, start_encoder, start) as pool:
        write_rest(out, replace(recipe, source=recipe.source or arguments.recipe), data, material.train)
        results = pool.imap(packed, [clip.audio for clip, _ in clips], chunksize=16)
        first, most = (int(size * 1e6) for size in (arguments.first_megabytes, arguments.part_megabytes))
        broken = write_parts(out, clips, results, first, most)
    say(f"{len(clips) - broken} clips packed, {broken} left out that cannot be read")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--recipe", default="silica-streaming", help="a name or a .toml (default: %(default)s)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="another value in the recipe"
    )
    parser.add_argument("--kilobits", type=float, default=13.0, help="a second (default: %(default)s)")
    parser.add_argument("--part-megabytes", type=float, default=58.0, help="default: %(default)s")
    parser.add_argument("--first-megabytes", type=float, default=6.0, help="part-00 (default: %(default)s)")
    parser.add_argument(
        "--share-spoken", type=float, default=0.33, help="of what a machine says (default: %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=2, help="that encode (default: %(default)s)")
    try:
        pack(parser.parse_args())
    except (AcousticError, TrainingError) as error:
        sys.exit(f"pack_sitting: {error}")


if __name__ == "__main__":
    main()
