"""Clients of the service: what the commands, the tests and other programs speak to it with."""

from urllib.parse import urlsplit, urlunsplit

from service.errors import ErrorCode, ServiceError

KEY_ADVICE = (
    "Give a good one with --key or as SILICA_KEY; `silica keys` on the server's machine lists and makes them."
)


def tls_error(server: str, error: OSError) -> ServiceError:
    """Somebody answers, but no safe connection comes about."""
    why = getattr(error, "verify_message", "") or getattr(error, "reason", None) or error
    return ServiceError(
        ErrorCode.NETWORK,
        f"No safe connection to {server}: {why}.",
        "Does it serve https there? A certificate of your own is trusted with SSL_CERT_FILE=FILE.",
    )


def server_address(server: str, scheme: str) -> str:
    """A server's address as the user wrote it, with the scheme (`http` or `ws`) of those who speak to it."""
    try:
        parts = urlsplit(server.rstrip("/"))
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and parts.port != 0:
            return urlunsplit(parts._replace(scheme=scheme + "s" * (parts.scheme in ("https", "wss"))))
    except ValueError:  # a port beyond 65535, a bracket that does not close
        pass
    raise ServiceError(
        ErrorCode.NETWORK, f"{server!r} is no address of a server.", "Expected http://HOST:PORT."
    )
