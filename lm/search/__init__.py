"""CTC prefix beam search with language model and hotwords, greedy search, confidence."""
