"""The sound of a channel between two Finalizes: its windows, what of it has been heard, how quiet it is."""

from dataclasses import dataclass, field
from enum import Enum

from acoustic.constants import OUTPUT_SAMPLES
from acoustic.windows import StreamWindows, WindowOutput
from service.session.energy import QuietFrames


class SegmentEnd(Enum):
    """Why a segment ends."""

    FINALIZE = "finalize"
    FINISH = "finish"


@dataclass
class Segment:
    """The sound between two Finalizes."""

    number: int
    windows: StreamWindows
    base_samples: int
    quiet: QuietFrames
    end_reason: SegmentEnd | None = None
    window_count: int = 0
    cut_frame: int = 0
    """Where the sound of the newest window ends."""
    next_index: int = 0
    frames_done: int = 0
    outputs: dict[int, WindowOutput] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Sound received so far."""
        return self.windows.received_samples

    def position(self, frames: int) -> int:
        """Where in the stream so many frames of this segment end, in samples."""
        return self.base_samples + min(frames * OUTPUT_SAMPLES, self.samples)
