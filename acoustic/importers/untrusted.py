"""Reads pickled weights and archives from untrusted sources: size limits, no links, no code execution.

Nothing is written to disk; only tensors and plain values are unpickled.
"""

import pickle
import tarfile
import warnings
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any

import torch

from acoustic.errors import AcousticError

MAX_MEMBER_BYTES = 4 * 1024**3
MAX_MEMBERS = 256


def load_tensors(source: IO[bytes] | Path, name: str) -> Any:
    """Load what `torch.save` wrote, if it contains tensors and plain values only."""
    try:
        with warnings.catch_warnings():
            # PyTorch warns about unusual pickles; unreadable ones are rejected below.
            warnings.simplefilter("ignore")
            return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise AcousticError(
            f"{name} was refused: it contains more than tensors and plain values, or is damaged. "
            "Loading such a file could run arbitrary code."
        ) from error
    except Exception as error:  # a damaged file can raise almost anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise AcousticError(f"{name} cannot be read as saved weights: {reason}") from error


def read_archive(path: Path, wanted: set[str], max_bytes: int = MAX_MEMBER_BYTES) -> dict[str, bytes]:
    """The wanted members of a tar archive (plain or compressed), by their names without `./`.

    Raises if any member is unsafe: an absolute path, `..`, a link, a device, too many members or one too large.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for count, member in enumerate(archive, start=1):
                _check_member(path, member, count, max_bytes)
                name = str(PurePosixPath(member.name))
                if member.isfile() and name in wanted:
                    opened = archive.extractfile(member)
                    if opened is not None:
                        found[name] = opened.read(max_bytes)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise AcousticError(f"{path} cannot be read as an archive: {error}.") from error
    return found


def _check_member(path: Path, member: tarfile.TarInfo, count: int, max_bytes: int) -> None:
    name = PurePosixPath(member.name)
    problem = ""
    if count > MAX_MEMBERS:
        problem = f"more than {MAX_MEMBERS} members"
    elif name.is_absolute() or ".." in name.parts or "\\" in member.name:
        problem = f"a path outside the archive ({member.name!r})"
    elif not (member.isfile() or member.isdir()):
        problem = f"a link or device ({member.name!r})"
    elif member.size > max_bytes:
        problem = f"{member.name!r} of {member.size} bytes, more than {max_bytes}"
    if problem:
        raise AcousticError(f"{path} was refused: it contains {problem}.")
