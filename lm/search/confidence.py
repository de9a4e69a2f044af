"""How sure to be of a word: what the search knows about it, mapped onto the chance that it is right.

A logistic regression, fitted and checked by benchmarks/calibration.py. Kept free of anything numba cannot compile:
the search computes it in its own loop.
"""

import math

# Weights of: constant; log doubt of the mean peak; log doubt of the least peak; mean peak; least peak; letters; and,
# with a language model, its log10 for the word.
WEIGHTS_WITH_LM = (0.29, -0.747, 0.0, 0.497, 0.0, 0.177, 0.483)
WEIGHTS_WITHOUT_LM = (0.604, -0.622, 0.0, 0.234, 2.648, -0.145)
MAX_LOG_PEAK = -1e-4
MIN_LM_SCORE = -7.0
MAX_CHARACTERS = 12


def word_confidence(mean_peak: float, min_peak: float, characters: int, language: float) -> float:
    """Between 0 and 1. The peaks are log-probabilities of the word's letters at their best frames (their mean
    and minimum); `language` is KenLM's log10 of the word, NaN where nobody asked."""
    mean = min(MAX_LOG_PEAK, mean_peak)
    least = min(MAX_LOG_PEAK, min_peak)
    mean_doubt = math.log(-math.expm1(mean))
    min_doubt = math.log(-math.expm1(least))
    length = min(characters, MAX_CHARACTERS)
    if math.isnan(language):
        w = WEIGHTS_WITHOUT_LM
        logit = w[0] + w[1] * mean_doubt + w[2] * min_doubt + w[3] * mean + w[4] * least + w[5] * length
    else:
        v = WEIGHTS_WITH_LM
        logit = v[0] + v[1] * mean_doubt + v[2] * min_doubt + v[3] * mean + v[4] * least + v[5] * length
        logit += v[6] * max(MIN_LM_SCORE, language)
    return 1.0 / (1.0 + math.exp(-logit))
