"""Recognition inside this process, without a server: options, recordings."""
