"""Every setting of the service: type, range, default, help. One place.

Read in the order TOML file < environment (SILICA_*) < command line; every value is checked and every
complaint says what was wrong and where it came from. Nothing here acts on a setting.
"""
# ruff: noqa: RUF009 (a setting's default is an immutable value)

import argparse
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from service.errors import ErrorCode, ServiceError


def setting(
    default: Any,
    section: str,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    secret: bool = False,
) -> Any:
    """One field with what people and checks need to know about it."""
    notes = {"section": section, "help": help, "low": low, "high": high, "secret": secret}
    return field(default=default, metadata=notes)


@dataclass(frozen=True)
class Settings:
    """How one `silica serve` behaves. Field names are the names in TOML, SILICA_* and on the command line."""

    host: str = setting("127.0.0.1", "network", "address to listen on; other than loopback needs keys")
    port: int = setting(8765, "network", "port for everything (0: any free one)", low=0, high=65535)
    insecure: bool = setting(False, "network", "listen beyond loopback though there are no keys")
    tls_certificate: Path | None = setting(
        None, "network", "PEM file with the certificate chain: serves https/wss"
    )
    tls_key: Path | None = setting(None, "network", "PEM file with the certificate's private key")
    origins: tuple[str, ...] = setting(
        (), "network", "further origins whose pages may connect (https://host[:port], or *)"
    )
    uvloop: bool = setting(True, "network", "use uvloop where it is installed")

    keys_file: Path | None = setting(None, "security", "file of hashed API keys, made by `silica keys add`")
    admin: bool = setting(
        True, "security", "serve POST /admin/reload (to admin keys; without keys, to loopback)"
    )
    open_metrics: bool = setting(True, "security", "serve /metrics without a key")

    model: str = setting(
        "silica-small-en", "recognition", "model for streams that name none or an unknown one"
    )
    more_models: tuple[str, ...] = setting((), "recognition", "further models that streams may name")
    language_model: str = setting(
        "shipped", "recognition", "'shipped', a KenLM file, what `silica lm rescore --out` wrote, or 'none'"
    )
    device: Literal["cpu", "cuda"] = setting("cpu", "recognition", "where the acoustic model runs")
    precision: Literal["fp32", "int8", "fp16"] | None = setting(
        None, "recognition", "arithmetic of the acoustic model (default: what suits the device)"
    )
    decoder: Literal["beam", "greedy"] = setting("beam", "recognition", "word search")
    hops_s: tuple[float, ...] = setting(
        (0.16, 0.32, 0.64, 1.28),
        "recognition",
        "steps between windows, widened under load",
        low=0.02,
        high=10.0,
    )
    endpointing_ms: int = setting(
        300, "recognition", "trailing silence that ends an utterance", low=10, high=10000
    )
    max_utterance_s: float = setting(
        30.0, "recognition", "an utterance is cut at this length", low=2, high=120
    )

    workers: int = setting(
        1,
        "capacity",
        "processes that speak with clients; more than one share the port and the device",
        low=1,
        high=64,
    )
    engine_workers: int | None = setting(None, "capacity", "acoustic processes on a CPU", low=1, high=256)
    decode_workers: int | None = setting(None, "capacity", "word search workers", low=1, high=256)
    max_streams: int | None = setting(
        None, "capacity", "most streams at once, and never more than are measured to fit", low=1, high=100000
    )
    overcommit: bool = setting(
        False, "capacity", "take max_streams in though fewer are measured to fit: words may come late"
    )
    max_sockets: int = setting(20000, "capacity", "open sockets at once, of any kind", low=1, high=1000000)
    container_streams: int = setting(
        64, "capacity", "compressed streams at once (each has a confined child process)", low=0, high=10000
    )
    cache_folder: Path | None = setting(None, "capacity", "where measured capacity is kept")

    max_message_bytes: int = setting(2097152, "limits", "largest websocket message", low=1024, high=16777216)
    audio_ahead_s: float = setting(
        10.0, "limits", "how far live sound may be ahead of real time before reading slows", low=1, high=600
    )
    idle_s: float = setting(
        10.0, "limits", "close after so long without audio or KeepAlive", low=1, high=3600
    )
    resume_s: float = setting(30.0, "limits", "how long a vanished client may come back", low=0, high=600)
    parked_limit: int = setting(256, "limits", "vanished clients kept at once", low=0, high=100000)
    send_s: float = setting(
        20.0, "limits", "a client that takes nothing for so long is closed", low=1, high=600
    )
    upload_stall_s: float = setting(
        30.0, "limits", "a file of which nothing comes for so long is refused", low=0.5, high=3600
    )
    heartbeat_s: float = setting(1.0, "limits", "sound between two Heartbeats", low=0.1, high=60)
    container_stall_s: float = setting(
        10.0, "limits", "a decoder child that answers nothing for so long is ended", low=1, high=120
    )
    container_memory_mb: int = setting(
        512, "limits", "memory of a decoder child beyond its start", low=64, high=8192
    )
    container_cpu_s: int = setting(600, "limits", "processor time of a decoder child", low=1, high=86400)
    drain_s: float = setting(30.0, "limits", "on SIGTERM, how long open streams may go on", low=0, high=3600)

    jobs_folder: Path | None = setting(None, "jobs", "where jobs are kept (default: beside the keys)")
    jobs_at_once: int = setting(1, "jobs", "recordings heard in the background at once", low=0, high=64)
    jobs_keep_days: float = setting(
        7.0, "jobs", "finished jobs are forgotten after so long", low=0.01, high=3650
    )
    jobs_quota_mb: int = setting(20480, "jobs", "disk for recordings that wait", low=1, high=100000000)
    jobs_lease_s: float = setting(
        30.0, "jobs", "a dead runner's jobs are free after so long", low=0.5, high=3600
    )
    webhook_hosts: tuple[str, ...] = setting(
        (), "jobs", "hosts (host or host:port) that jobs may call when they are done"
    )
    upload_mb: int = setting(2048, "limits", "largest file that one request may bring", low=1, high=1000000)

    log_format: Literal["plain", "json"] = setting(
        "plain", "logs", "one line a record, for people or machines"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "logs", "least severe that is told"
    )

    @property
    def models(self) -> tuple[str, ...]:
        """Every model to be served, the default first."""
        return tuple(dict.fromkeys((self.model, *self.more_models)))


YES = ("true", "1", "yes", "on")
NO = ("false", "0", "no", "off")
KINDS: Mapping[str, Any] = types.MappingProxyType(typing.get_type_hints(Settings))


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    line: Mapping[str, Any] | None = None,
) -> Settings:
    """TOML file (or the one SILICA_CONFIG names) < environment < command line (None there: not given)."""
    environment = os.environ if environment is None else environment
    if file is None and environment.get("SILICA_CONFIG"):
        file = Path(environment["SILICA_CONFIG"])
    given: dict[str, Any] = {}
    if file is not None:
        given.update(_from_toml(file))
    for name in KINDS:
        variable = f"SILICA_{name.upper()}"
        if variable in environment:
            given[name] = check(name, environment[variable], f"environment variable {variable}")
    for name, value in (line or {}).items():
        if name in KINDS and value is not None:
            given[name] = check(name, value, f"--{name.replace('_', '-')}")
    return _checked_together(replace(Settings(), **given))


def check(name: str, value: Any, source: str) -> Any:
    """The value of one setting in its own type, or a ServiceError that says what was expected."""
    notes = next(item.metadata for item in fields(Settings) if item.name == name)
    kind, optional = _without_none(KINDS[name])
    if optional and isinstance(value, str) and value.lower() in ("", "none", "auto"):
        return None
    try:
        found = _convert(kind, value)
    except (TypeError, ValueError):
        raise _complaint(source, value, _expectation(kind, notes)) from None
    numbers = found if isinstance(found, tuple) else (found,)
    for number in numbers:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            low, high = notes["low"], notes["high"]
            if number != number or (low is not None and number < low) or (high is not None and number > high):
                raise _complaint(source, value, _expectation(kind, notes))
    return found


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """One option a setting, grouped by section; not given means not set."""
    groups: dict[str, Any] = {}
    for item in fields(Settings):
        section = item.metadata["section"]
        group = groups.setdefault(section, parser.add_argument_group(section))
        kind, _ = _without_none(KINDS[item.name])
        option = "--" + item.name.replace("_", "-")
        default = "" if item.default in (None, (), "") else f" (default {_shown(item.default)})"
        text = (item.metadata["help"] + default).replace("%", "%%")
        if kind is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            if typing.get_origin(kind) is Literal:
                metavar = "{" + ",".join(typing.get_args(kind)) + "}"
            else:
                metavar = item.name.rsplit("_", 1)[-1].upper()
            group.add_argument(option, default=None, metavar=metavar, help=text)


def as_toml(settings: Settings) -> str:
    """The settings as a TOML file that gives them again; what is unset is a comment; secrets are masked."""
    sections: dict[str, list[str]] = {}
    for item in fields(Settings):
        value = getattr(settings, item.name)
        if item.metadata["secret"] and value:
            value = "****"
        text = f"# {item.name} =" if value is None else f"{item.name} = {_toml_value(value)}"
        sections.setdefault(item.metadata["section"], []).append(f"{text}  # {item.metadata['help']}")
    return "\n".join("\n".join((f"[{name}]", *lines, "")) for name, lines in sections.items())


def _from_toml(file: Path) -> dict[str, Any]:
    """The settings of a TOML file, in their sections or at its top."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ServiceError(
            ErrorCode.SETTINGS, f"cannot read the settings file {file}: {error.strerror}."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ServiceError(ErrorCode.SETTINGS, f"{file} is not TOML: {error}.") from None
    sections = {item.metadata["section"] for item in fields(Settings)}
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key in sections and isinstance(value, dict):
            flat.update(value)
        else:
            flat[key] = value
    given = {}
    for name, value in flat.items():
        if name not in KINDS:
            near = _nearest(name)
            raise ServiceError(
                ErrorCode.SETTINGS,
                f"{file}: there is no setting {name!r}.",
                f"Did you mean {near!r}?" if near else "`silica serve --print-config` lists them.",
            )
        given[name] = check(name, value, f"{name} in {file}")
    return given


def _checked_together(settings: Settings) -> Settings:
    """What no single setting can see."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ServiceError(
            ErrorCode.SETTINGS, "TLS needs both --tls-certificate and --tls-key; one is missing."
        )
    if list(settings.hops_s) != sorted(set(settings.hops_s)) or not settings.hops_s:
        raise ServiceError(ErrorCode.SETTINGS, "hops_s must be rising numbers, such as 0.16,0.32,0.64.")
    return settings


def _without_none(kind: Any) -> tuple[Any, bool]:
    """The type without its `| None`, and whether it had one."""
    arguments = typing.get_args(kind)
    if types.NoneType in arguments:
        rest = [argument for argument in arguments if argument is not types.NoneType]
        return rest[0], True
    return kind, False


def _convert(kind: Any, value: Any) -> Any:
    """A value from TOML, environment or line in the setting's own type; ValueError where it is not."""
    if kind is bool:
        if isinstance(value, bool):
            return value
        word = str(value).lower()
        return word in YES if word in YES + NO else _refuse()
    if isinstance(value, bool):
        _refuse()
    if typing.get_origin(kind) is Literal:
        return value if value in typing.get_args(kind) else _refuse()
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        parts = (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )
        return tuple(_convert(inner, part) for part in parts)
    if kind is int and isinstance(value, float):
        return int(value) if value.is_integer() else _refuse()
    if kind in (str, Path) and not isinstance(value, (str, Path)):
        _refuse()
    return kind(value)


def _refuse() -> typing.NoReturn:
    raise ValueError


def _expectation(kind: Any, notes: Mapping[str, Any]) -> str:
    """What a setting wants, in words."""
    low, high = notes["low"], notes["high"]
    span = f" from {low:g} to {high:g}" if low is not None and high is not None else ""
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"values{span} with commas between them"
    return {bool: "true or false", int: f"a whole number{span}", float: f"a number{span}"}.get(kind, "text")


def _complaint(source: str, value: Any, expected: str) -> ServiceError:
    return ServiceError(ErrorCode.SETTINGS, f"{source}: {value!r} will not do; expected {expected}.")


def _nearest(name: str) -> str | None:
    import difflib

    found = difflib.get_close_matches(name, KINDS, n=1)
    return found[0] if found else None


def _shown(value: Any) -> str:
    return ",".join(f"{part}" for part in value) if isinstance(value, tuple) else str(value)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(part) for part in value) + "]"
    if isinstance(value, (int, float)):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
