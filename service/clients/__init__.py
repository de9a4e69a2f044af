"""Clients of the server: live streams, files and jobs. The commands and the tests use them."""

from urllib.parse import urlsplit, urlunsplit

from service.errors import ErrorCode, ServiceError

KEY_ADVICE = "Pass a valid key with --key or SILICA_KEY. `silica keys` on the server lists and creates keys."


def tls_error(server: str, error: OSError) -> ServiceError:
    """The TLS handshake failed."""
    why = getattr(error, "verify_message", "") or getattr(error, "reason", None) or error
    return ServiceError(
        ErrorCode.NETWORK,
        f"TLS connection to {server} failed: {why}.",
        "Check that the server uses https. To trust your own certificate, set SSL_CERT_FILE=FILE.",
    )


def server_address(server: str, scheme: str) -> str:
    """The URL of the server with this scheme (`http` or `ws`, plus `s` for a TLS URL)."""
    try:
        parts = urlsplit(server.rstrip("/"))
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and parts.port != 0:
            return urlunsplit(parts._replace(scheme=scheme + "s" * (parts.scheme in ("https", "wss"))))
    except ValueError:  # a port above 65535 or an unclosed bracket
        pass
    raise ServiceError(ErrorCode.NETWORK, f"{server!r} is not a server URL.", "Expected http://HOST:PORT.")
