"""The server's one port: websockets, HTTP, the web page, health. Each module adds its own routes."""
