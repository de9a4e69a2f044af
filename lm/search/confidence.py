"""Word confidence: a logistic regression from acoustic and language model features to the probability of being right.

benchmarks/calibration.py fits and evaluates it. The function must stay compilable by numba, since the beam search calls
it from compiled code.
"""

import math

# Coefficients of: intercept, log(1 - p) of the mean peak, log(1 - p) of the lowest peak, mean peak, lowest peak, number
# of characters, KenLM's log10 for the word (0 without a language model).
WEIGHTS_WITH_LM = (0.29, -0.747, 0.0, 0.497, 0.0, 0.177, 0.483)
WEIGHTS_WITHOUT_LM = (0.604, -0.622, 0.0, 0.234, 2.648, -0.145, 0.0)
MAX_LOG_PEAK = -1e-4
MIN_LM_SCORE = -7.0
MAX_CHARACTERS = 12


def word_confidence(mean_peak: float, min_peak: float, characters: int, lm_score: float) -> float:
    """A probability between 0 and 1. A character's peak is its log-probability at its best frame; `mean_peak` and
    `min_peak` are taken over the word. `lm_score` is KenLM's log10 for the word, NaN without a language model."""
    mean = min(MAX_LOG_PEAK, mean_peak)
    lowest = min(MAX_LOG_PEAK, min_peak)
    length = min(characters, MAX_CHARACTERS)
    no_lm = math.isnan(lm_score)
    w = WEIGHTS_WITHOUT_LM if no_lm else WEIGHTS_WITH_LM
    logit = w[0] + w[1] * math.log(-math.expm1(mean)) + w[2] * math.log(-math.expm1(lowest))
    logit += w[3] * mean + w[4] * lowest + w[5] * length
    logit += 0.0 if no_lm else w[6] * max(MIN_LM_SCORE, lm_score)
    return 1.0 / (1.0 + math.exp(-logit))
