"""A word-level Transformer-XL for rescoring: numpy inference, PyTorch training from plain text."""
