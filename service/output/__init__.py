"""Transcripts as people read them: formatting, subtitles, files."""
