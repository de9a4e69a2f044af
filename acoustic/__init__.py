"""Sound to log-probabilities. Knows no text, no network, no language model."""
