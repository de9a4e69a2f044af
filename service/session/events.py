"""What a stream tells its listener: small frozen values, times in seconds from the sample count only.

Every accepted stream ends with exactly one `Closed`, always last. Nothing here knows a wire format.
"""

from dataclasses import dataclass

from service.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Word:
    """One word with its place in the stream."""

    text: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """One reading of an utterance; a final carries them best first."""

    words: tuple[Word, ...]
    score: float = 0.0

    @property
    def text(self) -> str:
        """The words, joined."""
        return " ".join(word.text for word in self.words)

    @property
    def confidence(self) -> float:
        """Mean confidence of the words; 0 when there are none."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """The stream is accepted; sound may come."""

    id: str
    model: str


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """After quiet, somebody speaks (told once an utterance, before its first partial)."""

    channel: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Partial:
    """What is heard of the open utterance so far; the first `stable_words` can no longer change.

    `probably_over` marks the early final candidate: silence is probable, and unless speech goes on
    (then a partial without the mark withdraws it) the final will say these words.
    """

    channel: int
    start_s: float
    end_s: float
    words: tuple[Word, ...]
    stable_words: int
    probably_over: bool = False

    @property
    def text(self) -> str:
        """The words, joined."""
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, slots=True)
class Final:
    """The sound from start to end, decided for good; `alternatives` is never empty, though it may lack words.

    `speech_final`: trailing silence ended it (False: cut by length, Finalize or the end of the stream).
    `from_finalize`: it answers a Finalize, and everything sent before that is in this or an earlier final.
    """

    channel: int
    start_s: float
    end_s: float
    alternatives: tuple[Alternative, ...]
    speech_final: bool
    from_finalize: bool = False

    @property
    def text(self) -> str:
        """The best reading."""
        return self.alternatives[0].text


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    """No new word for `utterance_end_ms` after the last one."""

    channel: int
    last_word_end_s: float


@dataclass(frozen=True, slots=True)
class MarkerReached:
    """Everything sent before the mark of this name has been heard and told."""

    name: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the words lag behind the sound: received minus processed."""

    received_s: float
    processed_s: float
    lag_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream cannot go on: a code for machines, a message and advice for people. `Closed` follows."""

    code: ErrorCode
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The one last event. Reasons: finished, cancelled, failed, lost (never resumed), drained."""

    reason: str
    audio_s: float


Event = (
    Started | SpeechStarted | Partial | Final | UtteranceEnded | MarkerReached | Progress | Failed | Closed
)
