"""The only time a stream knows: its sample count. One output frame of every model is 20 ms."""

SAMPLE_RATE = 16_000
FRAME_SAMPLES = 320
FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
