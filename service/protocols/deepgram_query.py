"""Parses and validates the query of /v1/listen, live and pre-recorded. Errors and warnings say what was expected."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lm.search.hotwords import Hotword
from service.errors import ErrorCode, ServiceError
from service.protocols.commands import StreamRequest, Warn

RAW = ("linear16", "linear32", "mulaw", "alaw")
CONTAINERS = ("flac", "mp3", "wav", "opus", "ogg-opus", "ogg", "webm", "mp4")
KEYWORD_WEIGHT = 5.0
MAX_HOTWORDS = 100
MAX_PHRASE_LENGTH = 100

UNSUPPORTED = {
    "callback": "results are sent on this socket only",
    "redact": "clients would rely on a redaction that does not happen",
}
IGNORED = ("tag", "version", "mip_opt_out", "extra", "token", "callback_method")
UNSUPPORTED_WITH_WARNING = (
    "detect_entities",
    "diarize",
    "diarize_model",
    "dictation",
    "language_hint",
    "numerals",
    "profanity_filter",
    "replace",
    "search",
)


def read_query(pairs: Iterable[tuple[str, str]]) -> StreamRequest:
    """Parse and validate the query; ServiceError "request" if it is invalid or not supported."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    for name, reason in UNSUPPORTED.items():
        if any(value.lower() not in ("", "false") for value in values.get(name, ())):
            raise ServiceError(
                ErrorCode.REQUEST, f"`{name}` is not supported: {reason}.", f"Leave out `{name}`."
            )
    query = _Query(values)
    encoding = query.choice("encoding", (*RAW, *CONTAINERS))
    warnings: list[Warn] = []
    for name in UNSUPPORTED_WITH_WARNING:
        if any(value.lower() not in ("", "false") for value in values.get(name, ())):
            warnings.append(Warn("option", f"`{name}` is not supported; ignored."))
    language = query.text("language")
    if language and not language.lower().startswith(("en", "multi")):
        warnings.append(
            Warn("language", f"language={language} is ignored: the model determines the language.")
        )
    channels = query.integer("channels", 1, 8, 1)
    request = StreamRequest(
        model=query.text("model"),
        encoding=encoding,
        sample_rate=query.optional_integer("sample_rate", 8000, 48000),
        channels=channels,
        multichannel=query.flag("multichannel"),
        interim=query.flag("interim_results"),
        endpointing_ms=query.endpointing(),
        utterance_end_ms=query.optional_integer("utterance_end_ms", 100, 60000),
        speech_events=query.flag("vad_events"),
        hotwords=read_hotwords((*values.get("keywords", ()), *values.get("keyterm", ()))),
        alternatives=query.integer("alternatives", 1, 10, 1),
        punctuate=query.flag("punctuate") | query.flag("smart_format"),
        smart_format=query.flag("smart_format"),
        extensions=query.flag("extensions"),
        source_is_file=query.choice("source", ("live", "file")) == "file",
        resume=query.text("resume"),
        after=query.integer("after", 0, 2**53, 0),
    )
    known = query.known | {
        *UNSUPPORTED,
        *IGNORED,
        *UNSUPPORTED_WITH_WARNING,
        "keywords",
        "keyterm",
        "language",
    }
    for name in sorted(set(values) - known):
        warnings.append(Warn("option", f"Unknown option `{name[:40]}`; ignored."))
    return replace(request, warnings=tuple(warnings))


def read_hotwords(phrases: Sequence[str]) -> tuple[Hotword, ...]:
    """Parse `phrase` or `phrase:weight`; ServiceError "request" for too many, too long, or an invalid weight."""
    if len(phrases) > MAX_HOTWORDS:
        raise ServiceError(
            ErrorCode.REQUEST,
            f"{len(phrases)} keyterms are too many: at most {MAX_HOTWORDS} are allowed.",
            "Send fewer.",
        )
    return tuple(_hotword(phrase) for phrase in phrases if phrase.strip())


def _hotword(text: str) -> Hotword:
    phrase, colon, number = text.rpartition(":")
    if not colon:
        phrase, number = text, str(KEYWORD_WEIGHT)
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not -10 <= weight <= 10 or not phrase.strip() or len(phrase) > MAX_PHRASE_LENGTH:
        raise ServiceError(
            ErrorCode.REQUEST,
            f"the keyterm {text[:MAX_PHRASE_LENGTH]!r} is invalid.",
            f"Expected `phrase` or `phrase:weight`, weight -10 to 10, up to {MAX_PHRASE_LENGTH} characters.",
        )
    return Hotword(phrase.strip(), weight)


class _Query:
    """Typed access to the query's values. `known` collects the names of all options that were read."""

    def __init__(self, values: dict[str, list[str]]) -> None:
        self.values = values
        self.known: set[str] = set()

    def text(self, name: str) -> str | None:
        self.known.add(name)
        found = self.values.get(name)
        if not found or not found[-1]:
            return None
        if len(found[-1]) > 200:
            raise ServiceError(ErrorCode.REQUEST, f"`{name}` is too long.", "Expected up to 200 characters.")
        return found[-1]

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        found = self.text(name)
        if found is not None and found.lower() not in choices:
            raise ServiceError(
                ErrorCode.REQUEST,
                f"{name}={found} is not supported.",
                f"Expected one of {', '.join(choices)}.",
            )
        return found.lower() if found is not None else None

    def flag(self, name: str) -> bool:
        return self.choice(name, ("true", "false", "1", "0")) in ("true", "1")

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        found = self.text(name)
        if found is None:
            return None
        if not (found.isascii() and found.isdigit()) or not low <= int(found) <= high:
            raise ServiceError(
                ErrorCode.REQUEST,
                f"{name}={found} is not supported.",
                f"Expected an integer from {low} to {high}.",
            )
        return int(found)

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        found = self.optional_integer(name, low, high)
        return default if found is None else found

    def endpointing(self) -> int | None:
        """None: off; -1: the server's default."""
        found = self.text("endpointing")
        if found is None or found.lower() == "true":
            return -1
        if found.lower() == "false":
            return None
        return self.integer("endpointing", 10, 60000, -1)
