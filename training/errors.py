"""What training raises when something is wrong with its data, recipe or checkpoint."""


class TrainingError(Exception):
    """A message for the user: what was wrong, what was expected, what to do."""
