"""Sound to log-mel features, framed, level-limited and normalized."""
