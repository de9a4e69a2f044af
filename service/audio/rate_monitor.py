"""Notices sound whose pace does not fit its declared rate. Pure: the time is told, never read."""

from acoustic.constants import SAMPLE_RATE

KNOWN_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
TOLERANCE = 0.04
CHECKS = 3
CHECK_EVERY_S = 0.5
FAST_AFTER_S, SLOW_AFTER_S = 3.0, 10.0


class RateMonitor:
    """Compares how much sound came with how long it took; says once which rate it looks like."""

    def __init__(self, declared: int) -> None:
        self.declared = declared
        self._began_s: float | None = None
        self._checked_s = 0.0
        self._suspect = 0
        self._matches = 0
        self._reported = False

    def observe(self, now_s: float, samples: int) -> int | None:
        """So many samples (16 kHz) have come by now: the rate that it looks like, or None. Said once."""
        if self._reported:
            return None
        if self._began_s is None:
            # The first message brings sound that was gathered before the clock started.
            self._began_s, self._first = now_s, samples
            return None
        spent_s = now_s - self._began_s
        if spent_s < FAST_AFTER_S or now_s - self._checked_s < CHECK_EVERY_S:
            return None
        self._checked_s = now_s
        pace = (samples - self._first) / SAMPLE_RATE / spent_s
        near = min(KNOWN_RATES, key=lambda rate: abs(rate / self.declared / pace - 1) if pace > 0 else rate)
        ratio = near / self.declared
        fits = pace > 0 and abs(ratio / pace - 1) < TOLERANCE
        clear = ratio >= 1.3 or (ratio <= 0.77 and spent_s >= SLOW_AFTER_S)
        self._matches = (self._matches + 1 if near == self._suspect else 1) if fits and clear else 0
        self._suspect = near
        if self._matches < CHECKS:
            return None
        self._reported = True
        return near
