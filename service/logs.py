"""Structured logs: one line a record, plain or JSON. Never a transcript, never a secret."""

import json
import logging
import re
import sys
import time
from typing import Any, TextIO

# What a key may hide behind: ?token=..., Authorization: Token ..., and our own keys wherever they stand.
SECRETS = re.compile(r"(?i)(token=|token\s+|bearer\s+|token,\s*|sk_silica_)[^\s\"'&,;]+")

log = logging.getLogger("silica")


def masked(text: str) -> str:
    """The text with every secret in it replaced by stars."""
    return SECRETS.sub(r"\1****", text)


def log_event(level: int, event: str, **facts: Any) -> None:
    """One record: what happened and the facts about it, in fields."""
    if log.isEnabledFor(level):
        log.log(level, event, extra={"facts": facts})


class Plain(logging.Formatter):
    """`12:00:01 info  event key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        parts = [f"{clock} {record.levelname.lower():<7} {record.getMessage()}"]
        parts += [f"{name}={value}" for name, value in facts.items() if value not in (None, "")]
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return masked(" ".join(parts))


class Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {name: value for name, value in getattr(record, "facts", {}).items() if value is not None}
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return masked(json.dumps({**line, **facts}, default=str))


def start_logging(form: str, level: str, stream: TextIO | None = None) -> None:
    """Send the service's records to a stream (standard error)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(Json() if form == "json" else Plain())
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False
