"""The exception of the `lm` package."""


class LanguageError(Exception):
    """Invalid input. The message tells the user what is wrong, what is expected and what to do."""
