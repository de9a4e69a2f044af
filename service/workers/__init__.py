"""`silica serve --workers N`: the supervisor owns the devices, N worker processes serve the clients."""
