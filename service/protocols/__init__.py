"""Wire formats, pure: bytes and text in, commands out; events in, text out. No I/O, no clock, no session."""
