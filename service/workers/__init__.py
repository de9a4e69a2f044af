"""`silica serve --workers N`: several processes speak with clients, one owns the device. link.py: who tells whom."""
