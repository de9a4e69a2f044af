"""How sure to be of a word: what the search knows about it, mapped onto the chance that it is right."""

import math


def word_confidence(mean_peak: float, least_peak: float, agreement: float) -> float:
    """Between 0 and 1. The peaks are log-probabilities of the word's letters at their best frames (their mean
    and minimum); agreement is the share of the search's probability mass that holds the word at this place."""
    return agreement * math.exp(0.5 * (mean_peak + least_peak))
