"""The `Job` value. store.py persists jobs, runner.py transcribes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["queued", "running", "done", "failed", "cancelled"]
UNFINISHED: tuple[Status, ...] = ("queued", "running")


@dataclass(frozen=True)
class Job:
    """One recording and its progress. Times are Unix seconds, lengths are seconds of audio."""

    id: str
    owner: str
    status: Status
    created: float
    name: str
    bytes: int
    sha256: str
    options: dict[str, Any] = field(default_factory=dict)
    finished: float | None = None
    processed_s: float = 0.0
    length_s: float | None = None
    share: float = 0.0
    """The transcribed share of the file, 0 to 1."""
    attempts: int = 0
    error: dict[str, str] | None = None
    webhook: str | None = None
    webhook_secret: str | None = None
    webhook_status: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The API representation. The webhook's secret is not in it: it is returned once, when the job is created."""
        return {
            "id": self.id,
            "object": "job",
            "status": self.status,
            "created": round(self.created, 3),
            "finished": None if self.finished is None else round(self.finished, 3),
            "name": self.name,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "options": self.options,
            "progress": {"share": round(self.share, 4), "processed_s": round(self.processed_s, 3)},
            "duration": None if self.length_s is None else round(self.length_s, 3),
            "attempts": self.attempts,
            "error": self.error,
            "webhook": None if self.webhook is None else {"url": self.webhook, "status": self.webhook_status},
        }
