"""The one decorator of every numba kernel: compiled once, cached on disk, run without the interpreter's lock.

numba looks only at a kernel's own file to tell whether what it cached is stale, though a kernel holds what it calls
from other files. So the cache lies in a folder named after the content of all of them.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from acoustic.files import cache_folder

Function = TypeVar("Function", bound=Callable[..., object])
Array = NDArray[Any]
Arrays = tuple[Array, ...]
Record = Any
"""One element of a structured array."""

KERNEL_FILES = [
    "compiled",
    "confidence",
    "histories",
    "hotwords",
    "lexicon",
    "ngram_kernel",
    "search_agreement",
    "search_endings",
    "search_kernel",
    "search_state",
    "search_steps",
    "search_tree",
    "trie_listing",
]
KEPT_CACHES = 3


def kernel_cache_folder() -> Path:
    """Beside the sources where that can be written, else in the user's cache; NUMBA_CACHE_DIR overrules both."""
    here = Path(__file__).parent
    content = b"".join((here / f"{name}.py").read_bytes() for name in KERNEL_FILES)
    name = f"kernels-{hashlib.sha256(content + numba.__version__.encode()).hexdigest()[:16]}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    beside = here / "__pycache__"
    if given:
        folder = Path(given)
    elif os.access(beside if beside.exists() else here, os.W_OK):
        folder = beside
    else:
        folder = cache_folder()
    return folder / name


def forget_old_caches(current: Path) -> None:
    """Each edit of a kernel leaves a folder behind: keep the newest few."""
    try:
        found = [path for path in current.parent.glob("kernels-*") if path != current]
        for path in sorted(found, key=lambda path: path.stat().st_mtime)[: -KEPT_CACHES or None]:
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return  # another process is tidying up, or may not be helped


CACHE = kernel_cache_folder()
if not CACHE.exists():
    forget_old_caches(CACHE)
numba.config.CACHE_DIR = str(CACHE)  # type: ignore[attr-defined]


def compiled(function: Function) -> Function:
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


@compiled
def whole(number: Any) -> int:
    """Any of numpy's integers as a plain signed one: unsigned ones would turn sums into floating point."""
    return np.int64(number)  # type: ignore[return-value]


@compiled
def real(number: Any) -> float:
    """Any of numpy's floating-point numbers as a double."""
    return float(np.float64(number))
