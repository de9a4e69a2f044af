"""What can be told to be wrong before anything is loaded: address, keys, certificate, files. Takes no time at all."""

import contextlib
import ipaddress
import os
import resource
import shutil
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

import acoustic
from acoustic.architectures import published
from acoustic.files import models_folder
from service.auth.keys import ApiKeys, default_keys_file
from service.auth.usage import process_name
from service.errors import ErrorCode, ServiceError
from service.settings import Settings

OTHER_VARIABLES = frozenset(
    {"SILICA_HOME", "SILICA_CONFIG", "SILICA_SERVER", "SILICA_KEY", "SILICA_KENLM_SOURCE"}
)
"""Variables of ours that are no setting of the server."""
OTHER_FILES = 500
"""Files that are open besides clients' sockets, at the most: uploads, workers, the log."""


def check(settings: Settings) -> None:
    """ServiceError for the first thing that cannot work."""
    check_exposed(settings, open_keys(settings).required)
    tls_context(settings)
    held = reserve_ports(settings.host, settings.port)
    for one in held:
        one.close()
    for name in settings.models:
        check_model(name)
    words = settings.language_model
    if words not in ("none", "shipped") and not Path(words).expanduser().exists():
        raise ServiceError(
            ErrorCode.LANGUAGE_MODEL,
            f"There is no language model {words!r}.",
            "Name a KenLM file, 'shipped' or 'none'.",
        )


def check_model(name: str) -> None:
    """ServiceError for a name that stands for nothing at all. The catalogue, which brings PyTorch, says the rest."""
    shipped = Path(acoustic.__file__).parent / "pretrained" / f"{name}.safetensors"
    brought = models_folder() / name
    if (
        name in published
        or shipped.exists()
        or brought.is_dir()
        or (name and Path(name).expanduser().exists())
    ):
        return
    raise ServiceError(
        ErrorCode.MODEL,
        f"There is no model {name!r}: neither a name nor a file.",
        "`silica models list` shows what is here.",
    )


def unknown_variables(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """A sentence for every SILICA_* variable that sets nothing: most likely it is misspelt."""
    known = {f"SILICA_{item.name.upper()}" for item in fields(Settings)} | OTHER_VARIABLES
    sentences = []
    for name in sorted(environment):
        if name.startswith("SILICA_") and name not in known:
            near = get_close_matches(name, known, n=1)
            sentences.append(
                f"{name} is set in the environment and means nothing here."
                + (f" Did you mean {near[0]}?" if near else "")
            )
    return tuple(sentences)


def raise_file_limit(settings: Settings) -> tuple[str, ...]:
    """As many files open at once as the settings promise sockets; where the system forbids it, a sentence that says so.

    Usually 1,024 are allowed at first and far more on request.
    """
    wanted = settings.max_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most >= settings.max_connections or soft == resource.RLIM_INFINITY:
        return ()
    return (
        f"The system allows {most} open files, max_connections is {settings.max_connections}: raise the limit "
        "(`ulimit -n`, LimitNOFILE for systemd) or lower max_connections.",
    )


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for this process only. What processes left that were killed is cleared away."""
    for left in Path(tempfile.gettempdir()).glob("silica-[0-9]*-*"):
        with contextlib.suppress(OSError, ValueError):
            if not process_name(int(left.name.split("-")[1])) and left.stat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"silica-{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def open_keys(settings: Settings) -> ApiKeys:
    """The keys that the settings name, or the usual file if there is one."""
    file = keys_file(settings)
    return ApiKeys(file if settings.keys_file or file.exists() else None)


def keys_file(settings: Settings) -> Path:
    """Where the keys lie, if there are any."""
    return settings.keys_file or default_keys_file()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower().rstrip(".") in ("localhost", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposed(settings: Settings, keys_needed: bool) -> None:
    """Refuse to listen beyond this machine without keys, unless told that this is meant."""
    if is_loopback(settings.host) or keys_needed or settings.insecure:
        return
    raise ServiceError(
        ErrorCode.EXPOSED,
        f"refusing to listen on {settings.host!r} without API keys: anyone who can reach it could use it.",
        "Make a key with `silica keys add NAME`, or pass --insecure if that is what you want.",
    )


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The certificate and its key, loaded; None without them."""
    if settings.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ServiceError(
            ErrorCode.TLS,
            f"cannot use the certificate {settings.tls_certificate} with its key: {error}.",
            "Both must be PEM files and belong together.",
        ) from None
    return context


def reserve_ports(host: str, port: int) -> list[socket.socket]:
    """Sockets that hold the port for processes that share it (bound, not listening); ServiceError when taken."""
    held: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            where = (address[0], held[0].getsockname()[1] if held and not port else port, *address[2:])
            if port:
                with _bound(family, kind, protocol, where, shared=False) as alone:
                    # Not shared at first: another server's shared port must not be joined by mistake.
                    alone.listen(1)
            held.append(_bound(family, kind, protocol, where, shared=True))
    except OSError as error:
        for one in held:
            one.close()
        raise cannot_listen(host, port, error) from None
    return held


def cannot_listen(host: str, port: int, error: OSError) -> ServiceError:
    """Why the port cannot be had, in words."""
    return ServiceError(
        ErrorCode.PORT,
        f"cannot listen on {host} port {port}: {error.strerror or error}.",
        "Is another server running there? Choose another with --port.",
    )


def _bound(family: int, kind: int, protocol: int, where: tuple[object, ...], shared: bool) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        # Connections of a server that has just ended keep its port for a minute, from whoever does not say this.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
    except OSError:
        made.close()
        raise
    return made
