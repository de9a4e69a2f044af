"""The sent messages that a client may have to resend: those not acknowledged; for a new session, those not final.

No I/O and no clock. Positions are bytes of audio since the client started.
"""

import json
from collections import deque
from dataclasses import dataclass

MAX_PENDING_S = 600.0
"""Acknowledged audio that is older has no final because it is silence: an utterance lasts at most 120 s."""


@dataclass
class SentMessage:
    """A message and its position in the audio."""

    payload: bytes | str
    position: int
    """Bytes of audio before it."""
    answered: bool = False

    @property
    def end(self) -> int:
        """Bytes of audio up to and including it."""
        return self.position + (len(self.payload) if isinstance(self.payload, bytes) else 0)


class ResendLog:
    """The last messages that were sent. `acknowledge` and `mark_final` drop what is no longer needed."""

    def __init__(self, frame_bytes: int | None, rate: int) -> None:
        self.frame_bytes = frame_bytes
        """Bytes per PCM frame; None if a new session cannot start within the audio (containers, multichannel)."""
        self.rate = rate
        self.sent_bytes = 0
        self.session_bytes = 0
        """Position where the current session started."""
        self._acknowledged_bytes = 0
        self._acknowledged_commands = 0
        self._commands = 0
        self._session_commands = 0
        self._final_bytes = 0
        self._entries: deque[SentMessage] = deque()
        self._numbers: deque[int] = deque()

    @property
    def offset_s(self) -> float:
        """The start of the current session, to be added to its times."""
        return self.session_bytes / (self.frame_bytes * self.rate) if self.frame_bytes else 0.0

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of audio that the server has not acknowledged."""
        return self.sent_bytes - max(self._acknowledged_bytes, self.session_bytes)

    @property
    def can_restart(self) -> bool:
        """Whether a new session can continue after the last final."""
        return self.frame_bytes is not None

    def add(self, payload: bytes | str) -> SentMessage:
        """Append a message: audio or a command."""
        entry = SentMessage(payload, self.sent_bytes)
        self._entries.append(entry)
        if isinstance(payload, bytes):
            self.sent_bytes += len(payload)
            self._numbers.append(0)
        else:
            self._commands += 1
            self._numbers.append(self._commands)
        return entry

    def acknowledge(self, received_bytes: int, received_commands: int) -> None:
        """The server has received this much of the current session."""
        self._acknowledged_bytes = max(self._acknowledged_bytes, self.session_bytes + received_bytes)
        self._acknowledged_commands = max(
            self._acknowledged_commands, self._session_commands + received_commands
        )
        if self.frame_bytes:
            samples = self._acknowledged_bytes // self.frame_bytes - round(MAX_PENDING_S * self.rate)
            self._final_bytes = max(self._final_bytes, samples * self.frame_bytes)
        self._trim()

    def mark_final(self, end_s: float) -> None:
        """Everything up to this time of the current session is final."""
        if self.frame_bytes:
            samples = round(end_s * self.rate)
            self._final_bytes = max(self._final_bytes, self.session_bytes + samples * self.frame_bytes)
            self._trim()

    def mark_answered(self, kind: str, name: str = "") -> None:
        """A Marker or Finalize was answered: a new session need not repeat it."""
        for entry in self._entries:
            if isinstance(entry.payload, str) and not entry.answered:
                message = json.loads(entry.payload)
                if message.get("type") == kind and message.get("name", "") == name:
                    entry.answered = True
                    break
        self._trim()

    def unacknowledged_messages(self) -> list[SentMessage]:
        """The messages to resend when the session is resumed, in order."""
        return [
            entry
            for entry, number in zip(self._entries, self._numbers, strict=True)
            if (number > self._acknowledged_commands if number else entry.end > self._acknowledged_bytes)
        ]

    def restart(self) -> list[SentMessage]:
        """Start a new session and return its messages: everything after the last final. Its times start at 0."""
        start = min(self._final_bytes, self.sent_bytes)
        entries = [entry for entry in self._entries if entry.end >= start and not entry.answered]
        resent: deque[SentMessage] = deque()
        for entry in entries:
            if isinstance(entry.payload, bytes) and entry.position < start:
                entry = SentMessage(entry.payload[start - entry.position :], start)
            if entry.payload:
                resent.append(entry)
        commands = sum(isinstance(entry.payload, str) for entry in resent)
        self._entries = resent
        self.session_bytes = self._acknowledged_bytes = start
        self._session_commands = self._acknowledged_commands = self._commands - commands
        number = self._session_commands
        self._numbers = deque()
        for entry in resent:
            number += isinstance(entry.payload, str)
            self._numbers.append(number if isinstance(entry.payload, str) else 0)
        return list(resent)

    def _trim(self) -> None:
        """Drop what neither a resumed nor a new session needs."""
        while self._entries:
            entry, number = self._entries[0], self._numbers[0]
            acknowledged = (
                number <= self._acknowledged_commands if number else entry.end <= self._acknowledged_bytes
            )
            # A command at the end of the final audio may still be unanswered.
            done = not self.can_restart or (entry.end <= self._final_bytes and (not number or entry.answered))
            if number and entry.position < self._final_bytes:
                done = True
            if not (acknowledged and done):
                return
            self._entries.popleft()
            self._numbers.popleft()
