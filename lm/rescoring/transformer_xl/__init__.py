"""Transformer-XL over words: knows the sentences before, scores n-best lists, trains from plain text."""
