"""MP4 files whose index comes last (phones write them so): the same file with the index first, so it can be streamed.

Moves bytes and adds to offsets only; nothing is decoded here. What it does not understand it leaves as it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CONTAINERS = (b"trak", b"mdia", b"minf", b"stbl", b"moov")
MOST_INDEX_BYTES = 64 * 1024 * 1024
MOST_BOXES = 100_000
PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Box:
    """One box of the file: its kind, where it begins, its length."""

    kind: bytes
    at: int
    size: int


def top_boxes(file: BinaryIO, length: int) -> list[Box]:
    """The boxes at the top of the file, as far as they make sense."""
    found: list[Box] = []
    at = 0
    while at + 8 <= length and len(found) < 1000:
        file.seek(at)
        head = file.read(16)
        size, kind = struct.unpack(">I4s", head[:8])
        if size == 1 and len(head) == 16:
            size = struct.unpack(">Q", head[8:])[0]
        elif size == 0:
            size = length - at
        if size < 8 or at + size > length:
            break
        found.append(Box(kind, at, size))
        at += size
    return found


def index_first(path: Path) -> bool:
    """Rewrite the file beside itself when its index comes after its sound; whether that was done."""
    length = path.stat().st_size
    with path.open("rb") as file:
        boxes = top_boxes(file, length)
        kinds = [box.kind for box in boxes]
        if b"moov" not in kinds or b"mdat" not in kinds or kinds.index(b"moov") < kinds.index(b"mdat"):
            return False
        moov, first = boxes[kinds.index(b"moov")], boxes[kinds.index(b"mdat")]
        if moov.size > MOST_INDEX_BYTES:
            return False
        file.seek(moov.at)
        index = bytearray(file.read(moov.size))
        # Everything from the first sound up to the old index moves back by the index's length.
        if not shift(index, moov.size, first.at, moov.at):
            return False
        rewritten = path.with_name(path.name + ".index-first")
        with rewritten.open("wb") as out:
            for begin, end in (
                (0, first.at),
                (None, None),
                (first.at, moov.at),
                (moov.at + moov.size, length),
            ):
                if begin is None or end is None:
                    out.write(index)
                else:
                    _copy(file, out, begin, end)
    rewritten.replace(path)
    return True


def shift(index: bytearray, by: int, begin: int, end: int) -> bool:
    """Add to every chunk offset that points into [begin, end); False when the index makes no sense."""
    waiting, seen = [(0, len(index))], 0
    while waiting:
        at, stop = waiting.pop()
        while at + 8 <= stop:
            seen += 1
            size, kind = struct.unpack_from(">I4s", index, at)
            if size < 8 or at + size > stop or seen > MOST_BOXES:
                return False
            if kind in CONTAINERS:
                waiting.append((at + 8, at + size))
            elif kind in (b"stco", b"co64") and not _shift_table(index, at, size, kind, by, begin, end):
                return False
            at += size
    return True


def _shift_table(index: bytearray, at: int, size: int, kind: bytes, by: int, begin: int, end: int) -> bool:
    if size < 16:
        return False
    width, form = (4, ">I") if kind == b"stco" else (8, ">Q")
    (count,) = struct.unpack_from(">I", index, at + 12)
    if 16 + count * width > size:
        return False
    for place in range(at + 16, at + 16 + count * width, width):
        (offset,) = struct.unpack_from(form, index, place)
        if begin <= offset < end:
            if offset + by >= 1 << (8 * width):
                return False
            struct.pack_into(form, index, place, offset + by)
    return True


def _copy(source: BinaryIO, out: BinaryIO, begin: int, end: int) -> None:
    source.seek(begin)
    left = end - begin
    while left > 0 and (piece := source.read(min(PIECE_BYTES, left))):
        out.write(piece)
        left -= len(piece)
