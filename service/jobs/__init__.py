"""Recordings that are heard in the background and survive restarts. Knows no HTTP; the routes lie in http/jobs.py."""
