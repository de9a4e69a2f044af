"""Rescoring of n-best lists with larger n-grams and a Transformer-XL."""
