"""Clients of the service: what the commands, the tests and other programs speak to it with."""
