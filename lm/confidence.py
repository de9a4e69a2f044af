"""How sure to be of a word: what the search knows about it, mapped onto the chance that it is right."""

import math


def word_confidence(mean_peak: float, least_peak: float, language: float) -> float:
    """Between 0 and 1. The peaks are log-probabilities of the word's letters at their best frames (their mean and
    minimum); `language` is KenLM's log10 of the word, NaN where nobody asked."""
    return math.exp(0.5 * (mean_peak + least_peak))
