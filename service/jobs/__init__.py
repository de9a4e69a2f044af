"""Background transcription of recordings; jobs survive restarts. No HTTP here: the routes are in http/jobs.py."""
