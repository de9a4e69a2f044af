"""Recognition in this process, without a server."""
