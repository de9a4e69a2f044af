"""The page that browsers get: files only, served by service/http/pages.py. No Python lives here."""
