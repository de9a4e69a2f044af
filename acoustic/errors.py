"""The exception of the `acoustic` package."""


class AcousticError(Exception):
    """An error with a message for the user: what is wrong, what was expected, what to do."""
