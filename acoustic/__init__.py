"""The acoustic model: audio to log-probabilities of characters. No text, no network I/O, no language model."""
