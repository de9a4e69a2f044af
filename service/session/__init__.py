"""One stream as a state machine without I/O, clock or threads: events, session, endpointing, transcript."""
