"""Bytes to sound: float32 at 16 kHz, per channel. No sockets of clients, no words."""
