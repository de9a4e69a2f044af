"""N-best rescoring of a final: larger n-grams, Transformer-XL."""
