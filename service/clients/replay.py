"""What a client has sent and may have to send again: kept until acknowledged, and for a new session until final.

Pure: no socket, no clock. Positions are bytes of sound since the client began.
"""

import json
from collections import deque
from dataclasses import dataclass

MAX_PENDING_S = 600.0
"""Servers decide an utterance long before (after two minutes at the most): what they have had for longer and spoke
no final of is silence."""


@dataclass
class SentMessage:
    """One message as it was sent, and where in the sound it stands."""

    payload: bytes | str
    position: int
    """Bytes of sound before it."""
    answered: bool = False

    @property
    def end(self) -> int:
        """Bytes of sound up to and including it."""
        return self.position + (len(self.payload) if isinstance(self.payload, bytes) else 0)


class ReplayLog:
    """The tail of what was sent. `acknowledge` and `mark_final` let go of what cannot be needed any more."""

    def __init__(self, frame_bytes: int | None, rate: int) -> None:
        self.frame_bytes = frame_bytes
        """Bytes a sample of raw mono-heard sound; None: sound that no second session can begin in the middle of."""
        self.rate = rate
        self.sent_bytes = 0
        self.session_bytes = 0
        """Where the present session began."""
        self._acknowledged_bytes = 0
        self._acknowledged_commands = 0
        self._commands = 0
        self._session_commands = 0
        self._final_bytes = 0
        self._entries: deque[SentMessage] = deque()
        self._numbers: deque[int] = deque()

    @property
    def offset_s(self) -> float:
        """What to add to the present session's times."""
        return self.session_bytes / (self.frame_bytes * self.rate) if self.frame_bytes else 0.0

    @property
    def unacknowledged_bytes(self) -> int:
        """Sound that the server has not said it has."""
        return self.sent_bytes - max(self._acknowledged_bytes, self.session_bytes)

    @property
    def can_restart(self) -> bool:
        """Whether a new session could take over: everything undecided is still here."""
        return self.frame_bytes is not None

    def add(self, payload: bytes | str) -> SentMessage:
        """One more message, sound or command."""
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
        """The server has so much of the present session."""
        self._acknowledged_bytes = max(self._acknowledged_bytes, self.session_bytes + received_bytes)
        self._acknowledged_commands = max(
            self._acknowledged_commands, self._session_commands + received_commands
        )
        if self.frame_bytes:
            samples = self._acknowledged_bytes // self.frame_bytes - round(MAX_PENDING_S * self.rate)
            self._final_bytes = max(self._final_bytes, samples * self.frame_bytes)
        self._trim()

    def mark_final(self, end_s: float) -> None:
        """Everything up to this time of the present session is final."""
        if self.frame_bytes:
            samples = round(end_s * self.rate)
            self._final_bytes = max(self._final_bytes, self.session_bytes + samples * self.frame_bytes)
            self._trim()

    def answered(self, kind: str, name: str = "") -> None:
        """A Marker came back or a Finalize was answered: a new session need not do it again."""
        for entry in self._entries:
            if isinstance(entry.payload, str) and not entry.answered:
                message = json.loads(entry.payload)
                if message.get("type") == kind and message.get("name", "") == name:
                    entry.answered = True
                    break
        self._trim()

    def resume(self) -> list[SentMessage]:
        """What the same session still has to get, in order."""
        return [
            entry
            for entry, number in zip(self._entries, self._numbers, strict=True)
            if (number > self._acknowledged_commands if number else entry.end > self._acknowledged_bytes)
        ]

    def restart(self) -> list[SentMessage]:
        """What a new session has to get: everything after the last final. Times start anew there."""
        start = min(self._final_bytes, self.sent_bytes)
        entries = [entry for entry in self._entries if entry.end >= start and not entry.answered]
        kept: deque[SentMessage] = deque()
        for entry in entries:
            if isinstance(entry.payload, bytes) and entry.position < start:
                entry = SentMessage(entry.payload[start - entry.position :], start)
            if entry.payload:
                kept.append(entry)
        commands = sum(isinstance(entry.payload, str) for entry in kept)
        self._entries = kept
        self.session_bytes = self._acknowledged_bytes = start
        self._session_commands = self._acknowledged_commands = self._commands - commands
        number = self._session_commands
        self._numbers = deque()
        for entry in kept:
            number += isinstance(entry.payload, str)
            self._numbers.append(number if isinstance(entry.payload, str) else 0)
        return list(kept)

    def _trim(self) -> None:
        """Let go of what neither a resumed nor a new session can need."""
        while self._entries:
            entry, number = self._entries[0], self._numbers[0]
            had = number <= self._acknowledged_commands if number else entry.end <= self._acknowledged_bytes
            # A command at the very end of what is decided may still wait for its answer.
            done = not self.can_restart or (entry.end <= self._final_bytes and (not number or entry.answered))
            if number and entry.position < self._final_bytes:
                done = True
            if not (had and done):
                return
            self._entries.popleft()
            self._numbers.popleft()
