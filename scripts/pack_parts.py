"""Pack what a recipe trains on into tar files of limited size, for a machine that is reached in small parcels.

    python scripts/pack_parts.py silica-attentive-gpu --data FOLDER --out .carry [--most-mb 40] [--also PATH ...]

Unpack all of them there into one folder (`tar -xf part.tar -C FOLDER`) and give that to `silica train --data`.
Paths inside are those below --data; a manifest goes with the first part that needs it.
"""

import argparse
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from training.data.manifests import read_manifest
from training.errors import TrainingError
from training.recipe import Recipe, load_recipe

# What tar spends: a block for each file's header, its content in whole blocks, a record at the end.
BLOCK = 512
ARCHIVE_END = 10_240


def files(recipe: Recipe, data: Path, also: list[Path]) -> Iterator[Path]:
    """Every file the recipe reads, manifests first, each once."""
    yield from (
        path for folder in also for path in (sorted(folder.rglob("*")) if folder.is_dir() else [folder])
    )
    for name in (*recipe.data.train, *recipe.data.dev, *filter(None, (recipe.data.noise,))):
        folder = data / name
        yield folder / "manifest.jsonl" if folder.is_dir() else folder
        if name == recipe.data.noise:  # its lines have other fields: the whole folder goes along
            yield from (
                path for path in sorted(folder.rglob("*")) if path.suffix in (".opus", ".flac", ".wav")
            )
        else:
            yield from (clip.audio for clip in read_manifest(folder))


def divided(paths: Iterator[Path], most_bytes: int) -> list[list[Path]]:
    """The files in order, cut into parts; one that is missing is named and ends it."""
    parts: list[list[Path]] = []
    filled = most_bytes
    for path in paths:
        if path.is_dir():
            continue
        if not path.exists():
            raise TrainingError(
                f"{path} is missing: is --data the folder that the recipe's manifests lie below?"
            )
        size = BLOCK + -(-path.stat().st_size // BLOCK) * BLOCK
        if filled + size > most_bytes:
            parts.append([])
            filled = ARCHIVE_END
        parts[-1].append(path)
        filled += size
    return parts


def pack(paths: Iterator[Path], data: Path, out: Path, most_bytes: int) -> list[Path]:
    """Write the parts; those of an earlier call give way."""
    parts = divided(paths, most_bytes)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("part-*.tar"):
        old.unlink()
    written = []
    for number, part in enumerate(parts):
        written.append(out / f"part-{number:02}.tar")
        with tarfile.open(written[-1], "w", format=tarfile.GNU_FORMAT, dereference=True) as archive:
            for path in part:
                archive.add(path, arcname=str(path.relative_to(data)))
    return written


def main() -> int:
    """Read the line, pack, say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="a shipped recipe's name or a .toml file")
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder the recipe's manifests lie below"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for the parts")
    parser.add_argument("--most-mb", type=float, default=40.0, help="largest part (default: 40)")
    parser.add_argument(
        "--also", type=Path, nargs="*", default=[], help="further files or folders below --data"
    )
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe)
    try:
        wanted = files(recipe, arguments.data, arguments.also)
        parts = pack(wanted, arguments.data, arguments.out, int(arguments.most_mb * 1e6))
    except TrainingError as error:
        print(f"pack_parts: {error}", file=sys.stderr)
        return 2
    for part in parts:
        print(f"{part}  {part.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
