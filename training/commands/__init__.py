"""The commands that the training package adds to `silica`, one file each."""
