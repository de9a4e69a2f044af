"""What a session is told and what it answers: inputs and effects, frozen values, all of them.

Whoever drives a session carries the effects out: `RunWindow` to the engine, `PushFrames` and `EndUtterance` to the
stream's
decode worker, `Emit` to the listener.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acoustic.windows import Window, WindowOutput
from lm.hypothesis import Hypothesis
from service.errors import ErrorCode
from service.session.events import Event


@dataclass(frozen=True, slots=True)
class WindowKey:
    """Which window of a stream: channel, segment (a new one after each Finalize), number in the segment."""

    channel: int
    segment: int
    index: int


# ---- inputs


@dataclass(frozen=True, slots=True)
class Configured:
    """The stream is accepted."""

    id: str
    model: str


@dataclass(frozen=True, slots=True)
class AudioReceived:
    """Sound [channels, n], 16 kHz, and the hop of the windows to come (None: as before)."""

    samples: npt.NDArray[np.float32]
    hop_frames: int | None = None


@dataclass(frozen=True, slots=True)
class WindowDone:
    """The engine has heard a window."""

    key: WindowKey
    output: WindowOutput


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decode worker's answer to the command with this serial; answers come in the commands' order."""

    serial: int
    hypotheses: tuple[Hypothesis, ...]


@dataclass(frozen=True, slots=True)
class Finalize:
    """Everything so far becomes final now."""


@dataclass(frozen=True, slots=True)
class PlaceMarker:
    """Say so when everything so far has been heard."""

    name: str


@dataclass(frozen=True, slots=True)
class Finish:
    """No more sound will come. `reason` is what Closed will say."""

    reason: str = "finished"


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The client vanished, and may come back."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The client is back."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The decode worker died; a new one knows nothing of this stream."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The stream cannot go on."""

    code: ErrorCode
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop now."""

    reason: str = "cancelled"


Input = (
    Configured
    | AudioReceived
    | WindowDone
    | Decoded
    | Finalize
    | PlaceMarker
    | Finish
    | Disconnected
    | Resumed
    | WorkerLost
    | Fail
    | Cancel
)

# ---- effects


@dataclass(frozen=True, slots=True)
class RunWindow:
    """Run this window; `urgent`: a client waits for the end of what it said."""

    key: WindowKey
    window: Window
    urgent: bool


@dataclass(frozen=True, slots=True)
class PushFrames:
    """Push frames to the utterance of this channel. `want_hypothesis`: answer with the best hypothesis."""

    serial: int
    channel: int
    utterance: int
    log_probs: npt.NDArray[np.float32]
    want_hypothesis: bool
    probably_over: bool = False
    position: int = 0
    """Samples of the channel that are heard with this push."""


@dataclass(frozen=True, slots=True)
class EndUtterance:
    """Finish the utterance and answer with its readings."""

    serial: int
    channel: int
    utterance: int
    position: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """The worker is new: push these frames silently (no answer) before anything else."""

    channel: int
    utterance: int
    log_probs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Emit:
    """An event for the listener."""

    event: Event


@dataclass(frozen=True, slots=True)
class Release:
    """Forget this stream's waiting windows and its decoder state."""


Effect = RunWindow | PushFrames | EndUtterance | Replay | Emit | Release
