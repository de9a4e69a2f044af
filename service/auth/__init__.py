"""API keys and their usage."""
