"""Atomic file writes and the user's data folders. Imports nothing of the project."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".part"
"""Suffix of temporary files: `.NAME.TOKEN.part`, in the folder of the final file."""


def data_folder() -> Path:
    """$SILICA_HOME, else $XDG_DATA_HOME/silica or ~/.local/share/silica."""
    return _home() or _user_folder("XDG_DATA_HOME", Path(".local", "share"))


def models_folder() -> Path:
    """The folder of imported and downloaded models."""
    return data_folder() / "models"


def cache_folder() -> Path:
    """Reproducible files: $SILICA_HOME/cache, else $XDG_CACHE_HOME/silica or ~/.cache/silica."""
    home = _home()
    return home / "cache" if home else _user_folder("XDG_CACHE_HOME", Path(".cache"))


def write_file(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Write a file atomically. private: only the owner may read it."""
    with replacing_file(path, private=private) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield the name of a temporary file, which replaces `path` after the block, once it is flushed to disk.

    If the block raises, `path` is unchanged and the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        partial.touch(mode=0o600 if private else 0o666)
        mode = partial.stat().st_mode
        yield partial
        # safetensors replaces this file by one of its own with private permissions.
        partial.chmod(mode | partial.stat().st_mode)
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the directory entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _home() -> Path | None:
    home = os.environ.get("SILICA_HOME")
    return Path(home) if home else None


def _user_folder(variable: str, below_home: Path) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / below_home) / "silica"
