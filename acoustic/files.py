"""Files that are written whole or not at all, and the folders of this user. Imports nothing of the project."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".part"
"""The suffix of temporary files: `.NAME.TOKEN.part`, in the folder of the file that they become."""


def data_folder() -> Path:
    """$SILICA_HOME, else $XDG_DATA_HOME/silica or ~/.local/share/silica."""
    return _home() or _user_folder("XDG_DATA_HOME", Path(".local", "share"))


def models_folder() -> Path:
    """Imported and downloaded models."""
    return data_folder() / "models"


def cache_folder() -> Path:
    """Files that can be made again: $SILICA_HOME/cache, else $XDG_CACHE_HOME/silica or ~/.cache/silica."""
    home = _home()
    return home / "cache" if home else _user_folder("XDG_CACHE_HOME", Path(".cache"))


def write_file(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Write a file whole or not at all. private: only the owner may read it."""
    with replacing_file(path, private=private) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """The name of a temporary file to write. It takes the place of `path` once the block ends and its content is on the
    disk; if the block fails, `path` stays as it was and the temporary file is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        partial.touch(mode=0o600 if private else 0o666)
        mode = partial.stat().st_mode
        yield partial
        # safetensors puts a file of its own in the place of this one, and makes it private.
        partial.chmod(mode | partial.stat().st_mode)
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
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
