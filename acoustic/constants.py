"""The time base of audio and of model outputs."""

SAMPLE_RATE = 16_000
"""Samples per second of all audio inside the project."""
OUTPUT_SAMPLES = 320
"""Samples per model output, for the models that the service runs."""
OUTPUT_S = OUTPUT_SAMPLES / SAMPLE_RATE
