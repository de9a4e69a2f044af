"""Learning rate schedules: warm-up, hold, decay. Pure arithmetic, independent of the optimizer."""

import math
from dataclasses import dataclass
from typing import Literal

from training.errors import TrainingError

Decay = Literal["constant", "exponential", "polynomial", "cosine", "linear"]
DECAYS: tuple[Decay, ...] = ("constant", "exponential", "polynomial", "cosine", "linear")


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak` in `warmup_steps`, `hold_steps` at the peak, then decay to `floor` at `total_steps`.

    exponential: peak * gamma ** (decay steps / decay_every), at least the floor. polynomial: (1 - progress) ** power;
    linear is power 1. cosine: half a cosine.
    """

    peak: float
    total_steps: int
    decay: str = "cosine"
    warmup_steps: int = 0
    hold_steps: int = 0
    floor: float = 0.0
    power: float = 2.0
    gamma: float = 0.981
    decay_every: int = 1

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise TrainingError(f"Unknown decay {self.decay!r}: expected one of {', '.join(DECAYS)}.")
        if self.total_steps < 1 or self.warmup_steps < 0 or self.hold_steps < 0 or self.decay_every < 1:
            raise TrainingError("A schedule needs at least one step; expected numbers of steps of 0 or more.")
        if self.warmup_steps + self.hold_steps > self.total_steps:
            raise TrainingError(
                f"Warm-up ({self.warmup_steps}) and hold ({self.hold_steps}) together are longer than the "
                f"{self.total_steps} steps of the run: shorten them or train longer."
            )
        if not 0.0 <= self.floor <= self.peak:
            raise TrainingError(f"The floor {self.floor} must lie between 0 and the peak {self.peak}.")

    def rate(self, step: int, elapsed: float | None = None) -> float:
        """The learning rate of the step with that number, counted from 0. In a run with a deadline `elapsed`, the share
        of its time that is over, takes the place of the steps in the decay (exponential decay still counts steps).
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        past = step - self.warmup_steps - self.hold_steps
        if past < 0 or self.decay == "constant":
            return self.peak
        if self.decay == "exponential":
            return max(self.floor, self.peak * math.pow(self.gamma, past / self.decay_every))
        length = self.total_steps - self.warmup_steps - self.hold_steps
        progress = min(1.0, past / max(1, length) if elapsed is None else elapsed)
        if self.decay == "cosine":
            share = 0.5 * (1 + math.cos(math.pi * progress))
        else:
            share = math.pow(1 - progress, 1.0 if self.decay == "linear" else self.power)
        return self.floor + (self.peak - self.floor) * share
