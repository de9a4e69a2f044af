"""What a client can say, whatever its wire: small frozen values that every dialect reads its messages into."""

from dataclasses import dataclass

from lm.search.hotwords import Hotword
from service.errors import ErrorCode

# What a client says of its stream is what the session is told: no second words for the same.
from service.session.messages import Finalize as Finalize
from service.session.messages import Finish as Finish
from service.session.messages import PlaceMarker as PlaceMarker


@dataclass(frozen=True, slots=True)
class Audio:
    """Sound, as it came."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """Hear the sound that the decoder holds back for the sake of what follows, such as its resampler's tail."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Still here."""


@dataclass(frozen=True, slots=True)
class SendText:
    """An answer that needs nothing heard: send this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer with what is heard by now: ask the dialect's `reply`, once what can be heard has been."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Something worth telling the client that stops nothing."""

    code: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """The message cannot be understood and going on would only mislead: close."""

    code: ErrorCode
    message: str
    advice: str


Command = Audio | Flush | KeepAlive | Finalize | PlaceMarker | Finish | SendText | Reply | Warn | Reject


@dataclass(frozen=True)
class ListenRequest:
    """Everything that a client asked for when it connected, checked."""

    model: str | None = None
    encoding: str | None = None
    """One of RAW, one of CONTAINERS, or None: to be recognized."""
    sample_rate: int | None = None
    channels: int = 1
    multichannel: bool = False
    interim: bool = False
    endpointing_ms: int | None = -1
    """None: off. -1: the server's default."""
    utterance_end_ms: int | None = None
    speech_events: bool = False
    hotwords: tuple[Hotword, ...] = ()
    alternatives: int = 1
    punctuate: bool = False
    smart_format: bool = False
    extensions: bool = False
    source_is_file: bool = False
    resume: str | None = None
    after: int = 0
    warnings: tuple[Warn, ...] = ()

    @property
    def output_channels(self) -> int:
        """Channels that are transcribed each by itself."""
        return self.channels if self.multichannel else 1
