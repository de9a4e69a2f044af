"""CTC decoding: prefix beam search with an n-gram and hotwords, greedy search, word confidence, tuning."""
