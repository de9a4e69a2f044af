"""Weights that others published, brought into Silica's own checkpoint format without trusting their files."""
