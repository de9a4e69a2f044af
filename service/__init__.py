"""Streams, batching, sockets, pages, jobs, commands. Uses acoustic and lm."""
