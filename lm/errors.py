"""What the language side raises when something is wrong with its input."""


class LanguageError(Exception):
    """A message for the user: what was wrong, what was expected, what to do."""
