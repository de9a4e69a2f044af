"""What a stream carries from window to window, as values that travel: they know no network and no PyTorch.

`NormalizationState` is that of normalization (`acoustic.features.normalization`). `StreamState` is what each
convolution heard last
before a window: made and used by a backend (`acoustic.runtime.cpu`); its graph is in `acoustic.export.streaming`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NormalizationState:
    """What a stream's frames have summed up to, band by band, the prior included."""

    frames: float
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]

    def add(self, features: "Tensor", limit_frames: int) -> "NormalizationState":
        """With the frames of [mels, frames] added; over the limit everything older fades."""
        more = features.cpu().double()
        frames = self.frames + more.shape[-1]
        fade = min(1.0, limit_frames / frames) if frames else 1.0
        sums: NDArray[np.float64] = (self.sums + more.sum(dim=-1).numpy()) * fade
        squares: NDArray[np.float64] = (self.squares + more.square().sum(dim=-1).numpy()) * fade
        return NormalizationState(frames * fade, sums, squares)

    def mean_and_deviation(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What to subtract and what to divide by."""
        mean = self.sums / self.frames
        variance = np.maximum(self.squares / self.frames - mean**2, 0.0)
        return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)


@dataclass(frozen=True, eq=False)
class StreamState:
    """One row of numbers: FP32, FP16 on a GPU, or the 8-bit numbers of an INT8 model. Only that model understands them.
    With causal normalization its memory at the same place goes with them (None: nothing was heard yet)."""

    values: "NDArray[Any] | Tensor"
    """A tensor lies on its device, which has the room back when the last one lets go. Nobody writes to it."""
    memory: NormalizationState | None = None

    def array(self) -> NDArray[Any]:
        """The numbers on the host."""
        return self.values if isinstance(self.values, np.ndarray) else self.values.cpu().numpy()

    def __reduce__(self) -> tuple[type["StreamState"], tuple[NDArray[Any], NormalizationState | None]]:
        """Copies and pickles lie on the host: where they are opened there may be no such device."""
        return StreamState, (self.array(), self.memory)
