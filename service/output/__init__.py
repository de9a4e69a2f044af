"""Output of transcripts: text formatting, subtitles, files."""
