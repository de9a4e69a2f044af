"""API keys and what each has used."""
