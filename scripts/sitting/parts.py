"""One part of a sitting's sound: a zip file of some thousand clips as Opus packets, with what is said in each.

A zip's table of contents is written last and its contents carry sums: a part that is still being copied cannot be read
as one, whoever copies it, and is tried again later.
"""

import functools
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sitting.opus import Decoder, Samples
from training.errors import TrainingError

CLIPS, SOUND = "clips.json", "sound.opus"
NOISE = "noise.zip"
"""The noise is a part too, with one clip in it."""
TOGETHER = 64
"""So many clips are decoded in one go."""


@dataclass(frozen=True)
class PackedClip:
    """Its length, how much of the part's sound is its own, what is said in it, how often the recipe names it."""

    samples: int
    bytes: int
    text: str | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Part:
    """What a file holds."""

    clips: tuple[PackedClip, ...]
    packets: bytes
    delay_samples: int


class NotWhole(TrainingError):
    """A part that is still being copied, or is broken."""


def part_name(number: int) -> str:
    return f"part-{number:02}.zip"


def part_files(folder: Path) -> list[Path]:
    """Parts of the folder in their order, whole or not."""
    return sorted(folder.glob("part-*.zip"))


def write_part(path: Path, clips: Sequence[PackedClip], packets: Sequence[bytes], delay_samples: int) -> int:
    """The file appears whole or not at all; its size comes back."""
    described = {"delay_samples": delay_samples, "clips": [astuple(clip) for clip in clips]}
    partial = path.with_name(f".{path.name}.part")
    with zipfile.ZipFile(partial, "w") as file:
        file.writestr(CLIPS, json.dumps(described, separators=(",", ":")), zipfile.ZIP_DEFLATED)
        file.writestr(SOUND, b"".join(packets))
    partial.replace(path)
    return path.stat().st_size


def read_part(path: Path) -> Part:
    """The clips and their packets."""
    try:
        with zipfile.ZipFile(path) as file:
            described, packets = json.loads(file.read(CLIPS)), file.read(SOUND)
        clips = tuple(PackedClip(*clip) for clip in described["clips"])
        delay = int(described["delay_samples"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise NotWhole(f"{path} is not whole, or is no part of a sitting: {error}.") from None
    if sum(clip.bytes for clip in clips) != len(packets):
        raise NotWhole(f"{path} is not whole: its clips want more or less sound than it holds.")
    return Part(clips, packets, delay)


def decoded(part: Part, pool: Any, folder: Path) -> Iterator[Samples]:
    """All sound of the part, some clips at a time; the processes of the pool do the work."""
    jobs, at = [], 0
    for first in range(0, len(part.clips), TOGETHER):
        clips = part.clips[first : first + TOGETHER]
        size = sum(clip.bytes for clip in clips)
        jobs.append((part.packets[at : at + size], clips, part.delay_samples, folder))
        at += size
    yield from pool.imap(_decode, jobs)


_decoder = functools.cache(Decoder)
"""One a process."""


def _decode(job: tuple[bytes, Sequence[PackedClip], int, Path]) -> Samples:
    packets, clips, delay, folder = job
    sounds, at = [], 0
    for clip in clips:
        sounds.append(_decoder(folder).decode(packets[at : at + clip.bytes], clip.samples, delay))
        at += clip.bytes
    return np.concatenate(sounds)
