"""The one decorator of every numba kernel: compiled once, cached on disk, run without the interpreter's lock."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])
Array = NDArray[Any]


def compiled(function: Function) -> Function:
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


@compiled
def whole(number: object) -> int:
    """Any of numpy's integers as a plain signed one: unsigned ones would turn arithmetic into floating point."""
    return np.int64(number)  # type: ignore[return-value, call-overload, no-any-return]
