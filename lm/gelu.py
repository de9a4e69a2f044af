"""The GELU activation in numpy, shared by the small networks of this package."""

import numpy as np
from numpy.typing import NDArray


def gelu(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Equal to PyTorch's `gelu` with `approximate="tanh"`."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (values + np.float32(0.044715) * values * values * values)
    return np.asarray(0.5 * values * (1 + np.tanh(inner)), dtype=np.float32)
