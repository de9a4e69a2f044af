"""From the network's log-probabilities to words: search, language models, text. No audio, no network I/O."""

from pathlib import Path

PRETRAINED = Path(__file__).parent / "pretrained"
"""The folder of the shipped models."""
