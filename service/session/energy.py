"""For how long the sound has been quiet, frame by frame (20 ms). How the samples are cut changes no count."""

from collections import deque

import numpy as np
import numpy.typing as npt

from acoustic.constants import OUTPUT_SAMPLES
from service.session.endpoint import SilenceDetector

QUIET_BEYOND_END_FRAMES = 1_000_000
"""Beyond the sound is silence."""


class QuietFrames:
    """The measured frames of one stretch of sound whose network outputs have not come yet, oldest first."""

    def __init__(self, detector: SilenceDetector) -> None:
        self._detector = detector
        self._quiet: deque[int] = deque()
        self._unmeasured: npt.NDArray[np.float32] = np.zeros(0, np.float32)

    def push(self, samples: npt.NDArray[np.float32]) -> list[tuple[int, int]]:
        """Measure the new frames: after which of these samples each ends, and for how long it has been quiet there."""
        carried_samples = self._unmeasured.size
        sound = np.concatenate([self._unmeasured, samples]) if carried_samples else samples
        whole = sound.size // OUTPUT_SAMPLES * OUTPUT_SAMPLES
        self._unmeasured = sound[whole:].copy()
        # Samples that are not finite are refused elsewhere; here they must only not warn.
        with np.errstate(all="ignore"):
            frames = sound[:whole].reshape(-1, OUTPUT_SAMPLES)
            power = np.einsum("ij,ij->i", frames, frames) / OUTPUT_SAMPLES
            energies_db = np.nan_to_num(10 * np.log10(power + 1e-10)).tolist()
        measured = []
        for number, energy_db in enumerate(energies_db, start=1):
            quiet = self._detector.step(energy_db)
            self._quiet.append(quiet)
            measured.append((number * OUTPUT_SAMPLES - carried_samples, quiet))
        return measured

    def next(self, ahead: int) -> tuple[int, int]:
        """For how long it has been quiet at the next frame, which is taken out, and so many frames later."""
        now = self._quiet.popleft() if self._quiet else QUIET_BEYOND_END_FRAMES
        if not ahead:
            return now, now
        return now, self._quiet[ahead - 1] if ahead <= len(self._quiet) else QUIET_BEYOND_END_FRAMES

    def quiet_in(self, frames: int) -> bool:
        """Whether it will be quiet so many frames on, as far as the sound is known."""
        return bool(self._quiet) and self._quiet[min(frames, len(self._quiet)) - 1] > 0
