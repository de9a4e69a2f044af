"""What a stream keeps between windows, as plain values without PyTorch.

`NormalizationState` belongs to `running` and `causal` normalization (`acoustic.features.normalization`). `StreamState`
holds the last inputs of every convolution. The network computes the next state: on a CPU the ONNX graph of
`acoustic.export.streaming`, on a GPU `acoustic.network.stream_state`. The backends pass it on (`acoustic.runtime`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NormalizationState:
    """The number of frames of a stream so far, and their sum and sum of squares per mel band, prior included."""

    frames: float
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]

    def add(self, features: "Tensor", limit_frames: int) -> "NormalizationState":
        """With the frames of [mels, frames] added, then scaled down to `limit_frames`: older frames decay."""
        added = features.cpu().double()
        frames = self.frames + added.shape[-1]
        scale = min(1.0, limit_frames / frames) if frames else 1.0
        sums: NDArray[np.float64] = (self.sums + added.sum(dim=-1).numpy()) * scale
        squares: NDArray[np.float64] = (self.squares + added.square().sum(dim=-1).numpy()) * scale
        return NormalizationState(frames * scale, sums, squares)

    def mean_and_deviation(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation per band."""
        mean = self.sums / self.frames
        variance = np.maximum(self.squares / self.frames - mean**2, 0.0)
        return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)


@dataclass(frozen=True, eq=False)
class StreamState:
    """The state of a network between two windows: a row of numbers that only the same model can read.

    The numbers are FP32, FP16 on a GPU, or the quantized activations of an INT8 model.
    """

    values: "NDArray[Any] | Tensor"
    """On a GPU a tensor in device memory, freed with the last reference. Never modified."""
    normalization: NormalizationState | None = None
    """With causal normalization its state at the same frame; None before the first frame."""

    def array(self) -> NDArray[Any]:
        """The numbers in host memory."""
        return self.values if isinstance(self.values, np.ndarray) else self.values.cpu().numpy()

    def __reduce__(self) -> tuple[type["StreamState"], tuple[NDArray[Any], NormalizationState | None]]:
        """Copies and pickles are in host memory: the receiver may not have the device."""
        return StreamState, (self.array(), self.normalization)
