"""Training losses: CTC and minimum word error rate."""
