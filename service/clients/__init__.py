"""Clients of the service: what the commands, the tests and other programs speak to it with."""

KEY_ADVICE = (
    "Give a good one with --key or as SILICA_KEY; `silica keys` on the server's machine lists and makes them."
)
