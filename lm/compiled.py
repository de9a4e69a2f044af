"""The one decorator of every numba kernel: compiled once, cached on disk, running without the interpreter's lock."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
