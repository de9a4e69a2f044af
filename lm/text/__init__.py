"""English text: normalization, inverse normalization, punctuation."""
