"""Detects a wrong declared sample rate from the pace at which audio arrives. No I/O: the caller passes the time."""

from acoustic.constants import SAMPLE_RATE

KNOWN_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
TOLERANCE = 0.04
MIN_MATCHES = 3
CHECK_INTERVAL_S = 0.5
FAST_AFTER_S, SLOW_AFTER_S = 3.0, 10.0


class RateMonitor:
    """Compares the amount of audio with the elapsed time and reports the likely rate once."""

    def __init__(self, declared: int) -> None:
        self.declared = declared
        self._start_s: float | None = None
        self._checked_s = 0.0
        self._candidate = 0
        self._matches = 0
        self._reported = False

    def observe(self, now_s: float, samples: int) -> int | None:
        """`samples` at 16 kHz have arrived in all. Return the likely rate the first time it is clear, else None."""
        if self._reported:
            return None
        if self._start_s is None:
            # The first message contains audio that was recorded before the clock started.
            self._start_s, self._start_samples = now_s, samples
            return None
        elapsed_s = now_s - self._start_s
        if elapsed_s < FAST_AFTER_S or now_s - self._checked_s < CHECK_INTERVAL_S:
            return None
        self._checked_s = now_s
        pace = (samples - self._start_samples) / SAMPLE_RATE / elapsed_s
        nearest = min(
            KNOWN_RATES, key=lambda rate: abs(rate / self.declared / pace - 1) if pace > 0 else rate
        )
        ratio = nearest / self.declared
        fits = pace > 0 and abs(ratio / pace - 1) < TOLERANCE
        clear = ratio >= 1.3 or (ratio <= 0.77 and elapsed_s >= SLOW_AFTER_S)
        self._matches = (self._matches + 1 if nearest == self._candidate else 1) if fits and clear else 0
        self._candidate = nearest
        if self._matches < MIN_MATCHES:
            return None
        self._reported = True
        return nearest
