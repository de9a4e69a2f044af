"""When an utterance begins and ends: a pure function of the frames, one 20 ms frame at a time.

Two witnesses: the network (mass on letters) and the energy over the noise floor. The network hears late, since
it looks ahead; the energy of that look-ahead is known already. Letters quiet for half the limit and energy for
all of it end an utterance, or letters for all of it and energy for half, or letters alone for half as long again.
No clock, no decoder, no samples here.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from acoustic.constants import OUTPUT_S

SPEECH_PROBABILITY = 0.3
"""Mass outside blank and space from which a frame counts as speech."""
QUIET_DB_ABOVE_FLOOR = 15.0
ALWAYS_QUIET_DB = -60.0
FLOOR_BLOCK_FRAMES = 25
FLOOR_BLOCKS = 8
"""The floor is the quietest frame of the last four seconds: nobody speaks so long without a gap."""
NO_FLOOR_DB = 1000.0
DIGITAL_SILENCE_DB = -90.0
"""A gate or a cut, which says nothing about the room."""
LOWEST_FLOOR_DB = ALWAYS_QUIET_DB - QUIET_DB_ABOVE_FLOOR
MIN_SILENCE_FRAMES = 5
"""Silences between letters of one word are as long as this: no setting makes the endpointer faster."""
PAUSE_FRAMES = 6
"""A pause good enough to cut at once the utterance is near its length limit."""
NEAR_LIMIT = 0.75
SECOND_EARLY_CUT_FRAMES = 8
"""After the first hurry comes a second, for letters that the network heard a little later."""


class SilenceDetector:
    """The energy's word: for how many frames it has been quiet."""

    def __init__(self) -> None:
        self.frames = 0
        self._seen = 0
        self._blocks_db: deque[float] = deque([NO_FLOOR_DB], FLOOR_BLOCKS)

    def step(self, energy_db: float) -> int:
        """One more frame."""
        if self._seen % FLOOR_BLOCK_FRAMES == 0:
            self._blocks_db.append(NO_FLOOR_DB)
        self._seen += 1
        if energy_db > DIGITAL_SILENCE_DB:
            self._blocks_db[-1] = min(self._blocks_db[-1], energy_db)
        floor_db = min(self._blocks_db)
        if floor_db == NO_FLOOR_DB:
            floor_db = LOWEST_FLOOR_DB
        low = energy_db < max(ALWAYS_QUIET_DB, floor_db + QUIET_DB_ABOVE_FLOOR)
        self.frames = self.frames + 1 if low else 0
        return self.frames


class UtteranceState(Enum):
    """Where the utterance stands."""

    QUIET = "quiet"
    SPEECH = "speech"
    CANDIDATE = "candidate"


class EndpointSignal(Enum):
    """What a frame brought about."""

    STARTED = "started"
    CANDIDATE = "candidate"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"
    CUT = "cut"
    GAP = "gap"
    """No letter for as long as somebody wants to be told of it (the segmenter's; the endpointer gives none)."""


@dataclass(frozen=True, slots=True)
class EndpointRule:
    """The limits in frames; `silence_frames` None: silence never ends an utterance."""

    silence_frames: int | None
    max_frames: int
    min_frames: int = 0
    """Silence ends no utterance that is shorter, itself included."""

    @classmethod
    def of(
        cls, endpointing_ms: int | None, max_utterance_s: float, min_utterance_s: float = 0.0
    ) -> "EndpointRule":
        """From the settings of a stream."""
        silence = (
            None
            if endpointing_ms is None
            else max(MIN_SILENCE_FRAMES, round(endpointing_ms / 1000 / OUTPUT_S))
        )
        longest = max(PAUSE_FRAMES, round(max_utterance_s / OUTPUT_S))
        return cls(silence, longest, round(min_utterance_s / OUTPUT_S))

    @property
    def half_frames(self) -> int | None:
        """Letters must have been silent for so long, when the energy has been quiet for the whole limit."""
        return None if self.silence_frames is None else max(MIN_SILENCE_FRAMES, self.silence_frames // 2)

    @property
    def silence_limits(self) -> tuple[int, int, int] | None:
        """Letters silent for so long end an utterance: with all of the energy's quiet, with half of it, alone."""
        if self.silence_frames is None or self.half_frames is None:
            return None
        return self.half_frames, self.silence_frames, self.silence_frames + self.silence_frames // 2

    @property
    def energy_ahead_frames(self) -> int:
        """The energy is asked for so far beyond the frame whose letters are known."""
        return 0 if self.silence_frames is None else self.silence_frames - (self.half_frames or 0)

    def early_cut_frames(self, look_ahead_frames: int) -> tuple[int, ...]:
        """After so much quiet the network's word, whose look-ahead is full now, may end the utterance."""
        if self.half_frames is None:
            return ()
        first = look_ahead_frames + self.half_frames + 1
        return (first, first + SECOND_EARLY_CUT_FRAMES)


class Endpointer:
    """The utterance states of one channel: quiet -> speech -> candidate -> (final) -> quiet."""

    def __init__(self, rule: EndpointRule) -> None:
        self.rule = rule
        self.state = UtteranceState.QUIET
        self.frames_since_speech = 0
        self._length_frames = 0

    @property
    def open(self) -> bool:
        """Whether an utterance has begun and not ended."""
        return self.state is not UtteranceState.QUIET

    @property
    def frames_to_next_decision(self) -> int | None:
        """After so many more frames without letters the open utterance may end; None: not while letters come."""
        run, limits = self.frames_since_speech, self.rule.silence_limits
        if self.state is UtteranceState.QUIET or run == 0 or limits is None:
            return None
        return next((at - run for at in limits if at > run), None)

    def step(
        self, speech_probability: float, quiet_frames: int, quiet_ahead: int = 0
    ) -> EndpointSignal | None:
        """One more frame, and for how long the energy has been quiet here and `energy_ahead_frames` later.

        ENDED and CUT mean: this frame is the utterance's last.
        """
        if speech_probability >= SPEECH_PROBABILITY:
            self.frames_since_speech = 0
            return self._speech_frame()
        self.frames_since_speech += 1
        if self.state is UtteranceState.QUIET:
            return None
        self._length_frames += 1
        return self._silent_frame(quiet_frames, quiet_ahead)

    def flush(self) -> None:
        """The utterance was ended from outside (Finalize, Finish)."""
        self.state = UtteranceState.QUIET
        self._length_frames = 0

    def _speech_frame(self) -> EndpointSignal | None:
        before, self.state = self.state, UtteranceState.SPEECH
        self._length_frames += 1
        if self._length_frames >= self.rule.max_frames:
            # Cut in the middle of speech: the next frame opens the next utterance.
            self.flush()
            return EndpointSignal.CUT
        if before is UtteranceState.QUIET:
            return EndpointSignal.STARTED
        return EndpointSignal.WITHDRAWN if before is UtteranceState.CANDIDATE else None

    def _silent_frame(self, quiet_frames: int, quiet_ahead: int) -> EndpointSignal | None:
        run, half, limits = self.frames_since_speech, self.rule.half_frames, self.rule.silence_limits
        if limits is not None and self._length_frames >= self.rule.min_frames:
            out_of_order_windows, silence, alone = limits
            over = run >= out_of_order_windows and quiet_ahead >= silence
            over = over or (run >= silence and quiet_frames >= silence // 2)
            if over or run >= alone:
                self.flush()
                return EndpointSignal.ENDED
        near_limit = self._length_frames >= NEAR_LIMIT * self.rule.max_frames
        if (near_limit and run >= PAUSE_FRAMES) or self._length_frames >= self.rule.max_frames:
            self.flush()
            return EndpointSignal.CUT
        if (
            half is not None
            and self.state is UtteranceState.SPEECH
            and run >= half
            and quiet_frames >= half // 2
        ):
            self.state = UtteranceState.CANDIDATE
            return EndpointSignal.CANDIDATE
        return None
