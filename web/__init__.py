"""The web page as static files, served by service/http/pages.py. No Python code."""
