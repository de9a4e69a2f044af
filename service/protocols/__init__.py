"""Wire formats as pure code: messages to commands, events to messages. No I/O, no clock, no session."""
