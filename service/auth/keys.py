"""API keys: a file of their hashes, who they are, what each may use. No HTTP here.

A key is 32 random bytes, so one SHA-256 of it cannot be guessed back; slow password hashing would only slow the
handshake. The key itself is shown once, when it is made.
"""

import fcntl
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from acoustic.files import data_folder, write_file
from service.auth.usage import Usage
from service.errors import ErrorCode, ServiceError

PREFIX = "sk_silica_"
log = logging.getLogger("silica.keys")


@dataclass(frozen=True)
class Key:
    """One API key without its secret. None as a limit: no limit."""

    id: str
    name: str
    hash: str
    created: str
    max_streams: int | None = None
    minutes_per_day: float | None = None
    admin: bool = False


ANONYMOUS = Key("", "anonymous", "", "", admin=True)


def default_keys_file() -> Path:
    """Where keys lie when no setting says otherwise."""
    return data_folder() / "keys.json"


def hash_secret(secret: str) -> str:
    """What the file keeps of a key."""
    return hashlib.sha256(secret.encode(errors="backslashreplace")).hexdigest()


def read_keys(file: Path) -> tuple[Key, ...]:
    """All keys of a file; none when it does not exist."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        known = {item.name for item in fields(Key)}
        return tuple(Key(**{k: v for k, v in entry.items() if k in known}) for entry in document["keys"])
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ServiceError(ErrorCode.KEYS, f"cannot read the keys file {file}: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise ServiceError(
            ErrorCode.KEYS,
            f"{file} is not a keys file.",
            "Move it away and make keys with `silica keys add NAME`.",
        ) from None


def write_keys(file: Path, keys: tuple[Key, ...]) -> None:
    """Replace the file in one step; only its owner may read it."""
    try:
        document = {"keys": [asdict(key) for key in keys]}
        write_file(file, json.dumps(document, indent=1) + "\n", private=True)
    except OSError as error:
        raise ServiceError(ErrorCode.KEYS, f"cannot write the keys file {file}: {error.strerror}.") from None


@contextmanager
def _file_lock(file: Path) -> Iterator[None]:
    """Nobody else changes the file between reading and writing it: a key that was revoked would come back."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f".{file.name}.lock").open("a")
    except OSError as error:
        raise ServiceError(
            ErrorCode.KEYS, f"cannot write beside the keys file {file}: {error.strerror}."
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def add_key(
    file: Path,
    name: str,
    *,
    max_streams: int | None = None,
    minutes_per_day: float | None = None,
    admin: bool = False,
) -> tuple[Key, str]:
    """A new key in the file, and its secret, which is kept nowhere."""
    if not name or len(name) > 64 or not name.isprintable():
        raise ServiceError(
            ErrorCode.KEYS, f"{name!r} is no name for a key: 1 to 64 printable characters, please."
        )
    if (max_streams is not None and max_streams < 1) or (
        minutes_per_day is not None and minutes_per_day <= 0
    ):
        raise ServiceError(ErrorCode.KEYS, "a limit must be above zero; leave it out for no limit.")
    secret = PREFIX + secrets.token_urlsafe(32)
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    key = Key(secrets.token_hex(4), name, hash_secret(secret), made, max_streams, minutes_per_day, admin)
    with _file_lock(file):
        keys = read_keys(file)
        if any(other.name == name for other in keys):
            raise ServiceError(
                ErrorCode.KEYS, f"there is a key named {name!r} already.", "Revoke it or choose another name."
            )
        write_keys(file, (*keys, key))
    return key, secret


def revoke_key(file: Path, name_or_id: str) -> Key:
    """Take one key out of the file; a running server notices within seconds."""
    with _file_lock(file):
        keys = read_keys(file)
        for key in keys:
            if name_or_id in (key.id, key.name):
                write_keys(file, tuple(other for other in keys if other.id != key.id))
                return replace(key, hash="")
    raise ServiceError(
        ErrorCode.KEYS, f"there is no key {name_or_id!r} in {file}.", "`silica keys list` shows them."
    )


class ApiKeys:
    """The keys in force, what each uses now, and what it has used today. Follows changes of the file."""

    def __init__(self, file: Path | None, usage: Usage | None = None) -> None:
        """Without `usage`, what keys use is not counted: nobody is served through such a ring."""
        self.file = file
        self.usage = usage
        self.streams: dict[str, int] = {}
        self._file_stamp: tuple[int, int] | None = None
        self._reported_error = ""
        self._checked_s = float("-inf")
        self._keys: dict[str, Key] = {}
        self.reload_if_changed(0.0)

    @property
    def required(self) -> bool:
        """Whether a key must be shown at all. A keys file that lost its last key still asks for one."""
        return self.file is not None and self._file_stamp is not None

    def reload_if_changed(self, now_s: float) -> None:
        """Read the file again if it changed; at most once in two seconds. While what was put there cannot be read, the
        keys known before stay good: whoever edits the file by hand must not end everybody's streams.
        """
        if self.file is None or now_s - self._checked_s < 2.0:
            return
        self._checked_s = now_s
        try:
            found = self.file.stat()
        except FileNotFoundError:
            # Keys that vanish while serving must not open the door: whoever had a key loses it.
            self._keys = {}
            return
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp == self._file_stamp:
            return
        try:
            self._keys = {key.hash: key for key in read_keys(self.file)}
            self._file_stamp, self._reported_error = stamp, ""
        except ServiceError as error:
            if self._file_stamp is None:
                raise
            if str(error) != self._reported_error:
                self._reported_error = str(error)
                log.error("the keys known before stay in force: %s", error)

    def find(self, secret: str | None, now_s: float) -> Key:
        """Whose key this is; ServiceError "key" when nobody's."""
        self.reload_if_changed(now_s)
        if not self.required:
            return ANONYMOUS
        if not secret:
            raise ServiceError(
                ErrorCode.KEY,
                "This server asks for an API key and none was sent.",
                "Send `Authorization: Token KEY`, `Bearer KEY`, `?token=KEY`, or the subprotocols `token, KEY`.",
            )
        # Looked up by hash: how long that takes tells nothing about the secret.
        key = self._keys.get(hash_secret(secret))
        if key is None:
            raise ServiceError(
                ErrorCode.KEY, "This API key is not known here.", "Was it revoked? `silica keys list` tells."
            )
        return key

    def is_valid(self, key: Key, now_s: float) -> bool:
        """Whether a key that was good is still good."""
        self.reload_if_changed(now_s)
        return not self.required or key.hash in self._keys

    def acquire_stream(self, key: Key) -> None:
        """One more stream for this key; ServiceError when it may not have it. Give it back with `release_stream`."""
        elsewhere = 0
        if key.max_streams is not None and self.usage is not None:
            elsewhere = self.usage.streams_elsewhere(key.id)
        if key.max_streams is not None and self.streams.get(key.id, 0) + elsewhere >= key.max_streams:
            raise ServiceError(
                ErrorCode.KEY_STREAMS,
                f"Key {key.name!r} already has its {key.max_streams} streams open.",
                "Close one, or ask for a higher limit.",
                retry_after_s=5.0,
            )
        self.check_minutes(key)
        self._change_count(key, 1)

    def check_minutes(self, key: Key) -> None:
        """ServiceError "key_minutes" when the day's audio of this key is used up."""
        limit = key.minutes_per_day
        if limit is not None and self.usage is not None and self.usage.seconds(key.id) >= limit * 60:
            raise ServiceError(
                ErrorCode.KEY_MINUTES,
                f"Key {key.name!r} has used its {limit:g} minutes of audio for today (UTC).",
                "It counts anew at midnight UTC.",
                retry_after_s=3600.0,
            )

    def add_usage(self, key: Key, seconds: float) -> None:
        """So much audio of this key was taken in."""
        if self.usage is not None and self.required:
            self.usage.add(key.id, seconds)

    def release_stream(self, key: Key) -> None:
        """One stream of this key ended."""
        self._change_count(key, -1)

    def close(self) -> None:
        """What was used is written down."""
        if self.usage is not None:
            self.usage.close()

    def _change_count(self, key: Key, change: int) -> None:
        now = self.streams[key.id] = max(0, self.streams.get(key.id, 0) + change)
        if not now:
            del self.streams[key.id]
        if key.max_streams is not None and self.usage is not None:
            self.usage.set_streams(key.id, now)
