"""The front end: level limiter, log-mel features, normalization."""
