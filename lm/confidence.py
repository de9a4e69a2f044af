"""How sure to be of a word: what the search knows about it, mapped onto the chance that it is right.

A logistic regression, fitted and checked by tests/perf/calibration.py. Kept free of anything numba cannot compile:
the search computes it in its own loop.
"""

import math

# Weights of: constant; log doubt of the mean peak; log doubt of the least peak; mean peak; least peak; letters; and,
# with a language model, its log10 for the word.
WITH_LANGUAGE = (0.29, -0.747, 0.0, 0.497, 0.0, 0.177, 0.483)
WITHOUT_LANGUAGE = (0.604, -0.622, 0.0, 0.234, 2.648, -0.145)
SUREST = -1e-4
LEAST_LANGUAGE = -7.0
MOST_LETTERS = 12


def word_confidence(mean_peak: float, min_peak: float, characters: int, language: float) -> float:
    """Between 0 and 1. The peaks are log-probabilities of the word's letters at their best frames (their mean
    and minimum); `language` is KenLM's log10 of the word, NaN where nobody asked."""
    mean = min(SUREST, mean_peak)
    least = min(SUREST, min_peak)
    mean_doubt = math.log(-math.expm1(mean))
    min_doubt = math.log(-math.expm1(least))
    length = min(characters, MOST_LETTERS)
    if math.isnan(language):
        w = WITHOUT_LANGUAGE
        logit = w[0] + w[1] * mean_doubt + w[2] * min_doubt + w[3] * mean + w[4] * least + w[5] * length
    else:
        v = WITH_LANGUAGE
        logit = v[0] + v[1] * mean_doubt + v[2] * min_doubt + v[3] * mean + v[4] * least + v[5] * length
        logit += v[6] * max(LEAST_LANGUAGE, language)
    return 1.0 / (1.0 + math.exp(-logit))
