"""What a stream is, without I/O, clock or thread: events, session, endpointing, transcript."""
