"""Audio input: bytes to float32 samples at 16 kHz, per channel. No network I/O and no recognition."""
