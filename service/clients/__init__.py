"""Clients of the service: what the commands, the tests and other programs speak to it with."""

from service.errors import ServiceError

KEY_ADVICE = (
    "Give a good one with --key or as SILICA_KEY; `silica keys` on the server's machine lists and makes them."
)


def untrusted(server: str, error: OSError) -> ServiceError:
    """Somebody answers, but no safe connection comes about."""
    why = getattr(error, "verify_message", "") or getattr(error, "reason", None) or error
    return ServiceError(
        "network",
        f"No safe connection to {server}: {why}.",
        "Does it serve https there? A certificate of your own is trusted with SSL_CERT_FILE=FILE.",
    )
