"""What the service raises and sends to its clients: a code for machines, a message and advice for people."""

from enum import StrEnum
from typing import Self


class ErrorCode(StrEnum):
    """What went wrong, with the HTTP status of an answer, the close code of a websocket, and the name and the default
    advice that /v1/listen and /vosk send.

    The value is the code in HTTP answers (in capitals), in jobs, and on OpenAI's socket.
    """

    status: int
    close_code: int
    close_name: str
    advice: str

    def __new__(
        cls,
        value: str,
        status: int,
        close_code: int,
        close_name: str = "INTERNAL",
        advice: str = "",
    ) -> Self:
        code = str.__new__(cls, value)
        code._value_ = value
        code.status, code.close_code, code.close_name = status, close_code, close_name
        code.advice = advice or ("Reconnect; it is logged here." if close_name == "INTERNAL" else "")
        return code

    # The server takes no more now.
    CAPACITY = "capacity", 503, 1013, "CAPACITY"
    DRAINING = "draining", 503, 1012, "DRAINING"
    STARTING = "starting", 503, 1013, "STARTING"
    SOCKETS = "sockets", 503, 1013, "SOCKETS"
    CONTAINERS = "containers", 503, 1013, "BUSY"
    BUSY = "busy", 409, 1013, "BUSY"
    STORAGE = "storage", 507, 1013, "STORAGE"
    # The client may not.
    KEY = "key", 401, 1008, "KEY-0000"
    KEY_STREAMS = "key_streams", 429, 1013, "KEY_STREAMS"
    KEY_MINUTES = "key_minutes", 429, 1008, "KEY-0000"
    ORIGIN = "origin", 403, 1008, "ORIGIN"
    FORBIDDEN = "forbidden", 403, 1008, "FORBIDDEN"
    # The request is wrong.
    UPGRADE = "upgrade", 426, 1008, "UPGRADE"
    REQUEST = "request", 400, 1008, "DATA-0001"
    MODEL = "model", 404, 1008, "MODEL"
    CHANNELS = "channels", 400, 1008, "CHANNELS"
    HOTWORDS = "hotwords", 400, 1008, "HOTWORDS"
    MARKS = "marks", 400, 1008, "MARK-0000"
    RESUME = "resume", 410, 1008, "RESUME"
    JOB = "job", 404, 1008, "JOB"
    HTTP = "http", 400, 1008, "HTTP"  # aiohttp refuses the request, with a status of its own
    # The client sends the wrong thing, or too much, or nothing, or does not read.
    AUDIO = "audio", 400, 1008, "DATA-0000"
    SIZE = "size", 413, 1009, "SIZE-0000"
    STALLED = "stalled", 408, 1008, "STALLED"
    IDLE = "idle", 408, 1011, "NET-0001", "Send sound, or KeepAlive every 3 to 5 s."
    SLOW_READER = "slow_reader", 408, 1008, "SLOW-0000"
    GONE = "gone", 499, 1011, "GONE"  # nobody reads it; counted and logged, as nginx does
    # The server fails.
    CLOSED = "closed", 500, 1011
    DECODER = "decoder", 500, 1011
    ENGINE = "engine", 500, 1011
    LANGUAGE_MODEL = "language_model", 500, 1011
    HOP = "hop", 500, 1011
    FRONTS = "fronts", 500, 1011
    INTERNAL = "internal", 500, 1011
    # The server cannot start. No client sees these.
    SETTINGS = "settings", 500, 1011
    KEYS = "keys", 500, 1011
    TLS = "tls", 500, 1011
    PORT = "port", 500, 1011
    EXPOSED = "exposed", 500, 1011
    # A client or a command fails. No server sends these.
    NETWORK = "network", 500, 1011
    REFUSED = "refused", 500, 1011
    RESTARTS = "restarts", 500, 1011
    DEVICE = "device", 500, 1011
    NO_DEVICE = "no_device", 500, 1011
    PORTAUDIO = "portaudio", 500, 1011
    FILE = "file", 500, 1011
    FILES = "files", 500, 1011
    AUDIO_FILE = "audio_file", 500, 1011
    LINE = "line", 500, 1011
    MANIFEST = "manifest", 500, 1011
    HOTWORD = "hotword", 500, 1011
    BENCH = "bench", 500, 1011


class ServiceError(Exception):
    """One failure that a client or operator is told about."""

    def __init__(
        self, code: ErrorCode, message: str, advice: str = "", *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{message} {advice}".strip())
        self.code = code
        self.message = message
        self.advice = advice
        self.retry_after_s = retry_after_s


def code_named(name: str) -> ErrorCode:
    """The code that a server sent, by its value in any case or by its close name; REFUSED for any other text."""
    for code in ErrorCode:
        if name.lower() == code.value:
            return code
    for code in ErrorCode:
        if name == code.close_name:
            return code
    return ErrorCode.REFUSED
