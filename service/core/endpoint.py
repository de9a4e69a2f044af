"""When an utterance begins and ends: a pure function of the frames, one 20 ms frame at a time.

Two witnesses: the network (mass on letters) and the energy over the noise floor. Both quiet: the short limit
ends the utterance; letters quiet but sound going on: the long one. No clock, no decoder, no samples here.
"""

from dataclasses import dataclass
from enum import Enum

from service.core.clock import FRAME_S

LETTER_MASS = 0.3
"""Mass outside blank and space from which a frame counts as speech."""
QUIET_DB_ABOVE_FLOOR = 10.0
SURELY_QUIET_DB = -60.0
FLOOR_RISE_DB = 0.05
"""A frame: the floor follows louder rooms by 2.5 dB a second, and quieter ones at once."""
LEAST_SILENCE_FRAMES = 5
"""Silences between letters of one word are as long as this: no setting makes the endpointer faster."""
PAUSE_FRAMES = 6
"""A pause good enough to cut at once the utterance is near its length limit."""
NEAR_LIMIT = 0.75


class Speech(Enum):
    """Where the utterance stands."""

    QUIET = "quiet"
    SPEECH = "speech"
    CANDIDATE = "candidate"


class Signal(Enum):
    """What a frame brought about."""

    STARTED = "started"
    CANDIDATE = "candidate"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class EndpointRule:
    """The limits in frames; `silence_frames` None: silence never ends an utterance."""

    silence_frames: int | None
    longest_frames: int

    @classmethod
    def of(cls, endpointing_ms: int | None, max_utterance_s: float) -> "EndpointRule":
        """From the settings of a stream."""
        silence = (
            None
            if endpointing_ms is None
            else max(LEAST_SILENCE_FRAMES, round(endpointing_ms / 1000 / FRAME_S))
        )
        return cls(silence, max(PAUSE_FRAMES, round(max_utterance_s / FRAME_S)))


class Endpointer:
    """The utterance states of one channel: quiet -> speech -> candidate -> (final) -> quiet."""

    def __init__(self, rule: EndpointRule) -> None:
        self.rule = rule
        self.state = Speech.QUIET
        self.frames_since_letter = 0
        self._floor_db = 0.0
        self._quiet_frames = 0
        self._length_frames = 0

    def step(self, letter_mass: float, energy_db: float) -> Signal | None:
        """One more frame. ENDED and CUT mean: this frame is the utterance's last."""
        self._floor_db = min(energy_db, self._floor_db + FLOOR_RISE_DB)
        low = energy_db < max(SURELY_QUIET_DB, self._floor_db + QUIET_DB_ABOVE_FLOOR)
        self._quiet_frames = self._quiet_frames + 1 if low else 0
        if letter_mass >= LETTER_MASS:
            self.frames_since_letter = 0
            return self._letter()
        self.frames_since_letter += 1
        if self.state is Speech.QUIET:
            return None
        self._length_frames += 1
        return self._silence()

    def flush(self) -> None:
        """The utterance was ended from outside (Finalize, Finish)."""
        self.state = Speech.QUIET
        self._length_frames = 0

    def _letter(self) -> Signal | None:
        before, self.state = self.state, Speech.SPEECH
        self._length_frames += 1
        if self._length_frames >= self.rule.longest_frames:
            # Cut in the middle of speech: the next frame opens the next utterance.
            self.flush()
            return Signal.CUT
        if before is Speech.QUIET:
            return Signal.STARTED
        return Signal.WITHDRAWN if before is Speech.CANDIDATE else None

    def _silence(self) -> Signal | None:
        run, silence = self.frames_since_letter, self.rule.silence_frames
        if silence is not None:
            both_quiet = self._quiet_frames >= silence // 2
            if (run >= silence and both_quiet) or run >= 2 * silence:
                self.flush()
                return Signal.ENDED
        near_limit = self._length_frames >= NEAR_LIMIT * self.rule.longest_frames
        if (near_limit and run >= PAUSE_FRAMES) or self._length_frames >= self.rule.longest_frames:
            self.flush()
            return Signal.CUT
        if silence is not None and self.state is Speech.SPEECH:
            early = max(LEAST_SILENCE_FRAMES, silence // 2)
            if early <= run and self._quiet_frames >= early // 2:
                self.state = Speech.CANDIDATE
                return Signal.CANDIDATE
        return None
