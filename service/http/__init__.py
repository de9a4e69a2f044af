"""The faces on the one port: websockets, HTTP, the page, health. Each module adds its own routes."""
