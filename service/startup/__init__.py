"""What a server does before it accepts streams: checks, limits, event loop, banner."""
