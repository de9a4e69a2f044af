"""Optimizers, learning-rate schedules, weight averaging, quantization-aware rounding."""
