"""One process at a time in a folder: a lock that goes with its process, however that ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import TrainingError


@contextmanager
def exclusive(folder: Path, doing: str) -> Iterator[None]:
    """Held while this process is `doing` something in the folder that two would spoil for each other."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(
                f"Another process is {doing} in {folder}. Wait for it, or name another folder."
            ) from None
        yield
