"""The carried state of a stream: what each convolution heard last before a window, as a value that travels.

Made and used by a backend (`acoustic.runtime.cpu`), handed from window to window like the memory of running
normalisation. The graph it belongs to is in `acoustic.export_carried`.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class State:
    """One row of numbers: FP32, or the 8-bit numbers of an INT8 model. Only that model understands them."""

    values: NDArray[Any]
