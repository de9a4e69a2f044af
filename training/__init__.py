"""Data to models. Uses acoustic and lm; never service."""
