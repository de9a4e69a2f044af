"""What a connection asks of a dialect, whichever it is: messages to commands, events to messages. Nothing runs here."""

from dataclasses import dataclass
from typing import Protocol

from service.errors import ErrorCode
from service.protocols.commands import Command, Warn
from service.session.events import Closed, Event


@dataclass(frozen=True)
class Received:
    """What has arrived so far, for acknowledgements."""

    bytes: int
    samples: int | None
    commands: int


class WireProtocol(Protocol):
    """One stream's wire."""

    name: str

    def receive(self, message: str | bytes) -> list[Command]:
        """What one message of the client says."""

    def write(self, number: int, event: Event, received: Received) -> list[str]:
        """The messages that this event makes due; none when the client did not ask for its kind."""

    def reply(self) -> str | None:
        """The answer to a Reply command; None where clients are only told things as they happen."""

    def warn(self, warning: Warn) -> bool:
        """Put a warning on the next message. False: it is not said, or was said before."""

    def resumed(self, received: Received) -> list[str]:
        """The first messages on a connection that resumes."""

    def close_reason(self, code: ErrorCode, message: str) -> str:
        """The reason of a close after this error."""

    def closing_messages(self, number: int, closed: Closed, sha256: str, finishing: bool) -> list[str]:
        """The last messages before the socket is closed; `finishing`: as the client wished."""
