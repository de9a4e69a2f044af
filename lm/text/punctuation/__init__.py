"""Punctuation and capitals for spoken words: a small convolution over word vectors; numpy when used, torch to train."""
