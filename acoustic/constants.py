"""The time base of sound and of model outputs."""

SAMPLE_RATE = 16_000
"""Samples per second of all sound inside the project."""
OUTPUT_SAMPLES = 320
"""Samples per output of the models that the service runs."""
OUTPUT_S = OUTPUT_SAMPLES / SAMPLE_RATE
