"""Server startup: checks, limits, event loop, banner."""
