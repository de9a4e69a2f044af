"""Log-probabilities to words. No audio, no network I/O."""

from pathlib import Path

PRETRAINED = Path(__file__).parent / "pretrained"
"""The shipped models."""
