"""A lock file that lets one process at a time work in a folder; the system releases it when the process ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import TrainingError


@contextmanager
def exclusive(folder: Path, activity: str) -> Iterator[None]:
    """Hold the lock of a folder. Raises if another process holds it; `activity` names in the error what it does."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(
                f"Another process is {activity} in {folder}. Wait for it, or name another folder."
            ) from None
        yield
