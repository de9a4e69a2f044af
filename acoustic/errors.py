"""What the acoustic side raises when something is wrong with its input."""


class AcousticError(Exception):
    """A message for the user: what was wrong, what was expected, what to do."""
