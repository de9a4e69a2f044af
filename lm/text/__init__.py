"""English text: normalization for training and scoring, inverse normalization, punctuation, corpora."""
