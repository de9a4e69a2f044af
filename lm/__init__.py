"""Log-probabilities to words. Knows no sound, no network."""
