"""The sound of a channel between two Finalizes: its windows, what of it has been heard, how quiet it is."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from acoustic.constants import OUTPUT_SAMPLES
from acoustic.windows import Heard, StreamWindows

LONG_QUIET = 1_000_000

Frames = npt.NDArray[np.float32]


class Heading(Enum):
    """Why a segment ends."""

    FINALIZE = "finalize"
    FINISH = "finish"


@dataclass
class Segment:
    """The sound between two Finalizes."""

    number: int
    windows: StreamWindows
    base_samples: int
    heading: Heading | None = None
    made: int = 0
    cut_frame: int = 0
    """Where the sound of the newest window ends."""
    next_index: int = 0
    frames_done: int = 0
    heard: dict[int, Heard] = field(default_factory=dict)
    quiet: deque[int] = field(default_factory=deque)
    """For how many frames the energy has been quiet, for each frame whose outputs have not come."""
    unmeasured: Frames = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def samples(self) -> int:
        """Sound received so far."""
        return self.windows.received_samples

    def position(self, frames: int) -> int:
        """Where in the stream so many frames of this segment end, in samples."""
        return self.base_samples + min(frames * OUTPUT_SAMPLES, self.samples)

    def quiet_frames(self, ahead: int) -> tuple[int, int]:
        """For how long it has been quiet at the next frame, and so many frames later. Beyond the sound is silence."""
        now = self.quiet.popleft() if self.quiet else LONG_QUIET
        return now, self.quiet[ahead - 1] if 0 < ahead <= len(self.quiet) else LONG_QUIET if ahead else now

    def quiet_in(self, frames: int) -> bool:
        """Whether the energy will be quiet so many frames on, as far as the sound is known."""
        return bool(self.quiet) and self.quiet[min(frames, len(self.quiet)) - 1] > 0
