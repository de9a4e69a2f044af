"""What a recipe may do to sound and features before they are learnt from: values only, so that a recipe is read
without PyTorch. The work is done in `training.augment`.
"""

from dataclasses import dataclass, replace
from typing import Any

from training.validation import ABOVE_NOUGHT, NOUGHT_OR_MORE, ONE_OR_MORE, SHARE, check

PARTS = (
    "speed",
    "vocal_tract",
    "voice",
    "room",
    "noise",
    "band",
    "telephone",
    "quantize",
)
"""The parts of the chain that fall on more rows the stronger it is."""


@dataclass(frozen=True)
class AugmentConfig:
    """Probabilities (0 switches a part off) and ranges. `scaled` weakens or strengthens all of them at
    once. A vocal tract has one factor of its range at the bottom of the spectrum and another at the top. `before` is
    the share of rows that a stream with causal normalization has heard something else before.
    """

    speed: float = 0.8
    speed_range: tuple[float, float] = (0.85, 1.15)
    vocal_tract: float = 0.4
    vocal_tract_range: tuple[float, float] = (0.87, 1.15)
    voice: float = 0.2
    voice_snr_db: tuple[float, float] = (10.0, 20.0)
    room: float = 0.3
    given_room_share: float = 0.3
    noise: float = 0.6
    noise_snr_db: tuple[float, float] = (0.0, 30.0)
    band: float = 0.3
    telephone: float = 0.15
    quantize: float = 0.1
    quantize_bits: tuple[float, float] = (6.0, 10.0)
    level: float = 0.8
    level_db: tuple[float, float] = (-20.0, 10.0)
    nothing: float = 0.0
    nothing_db: tuple[float, float] = (-90.0, -15.0)
    before: float = 0.0

    def __post_init__(self) -> None:
        check("augment", self, SHARE, *PARTS, "level", "nothing", "before", "given_room_share")
        check("augment", self, ABOVE_NOUGHT, "speed_range", "vocal_tract_range")
        check("augment", self, ONE_OR_MORE, "quantize_bits")

    def scaled(self, strength: float) -> "AugmentConfig":
        """The same chain at a strength between 0 (nothing) and 1 (as written).

        Probabilities shrink in proportion, ranges towards no change; the lowest signal-to-noise ratios rise.
        """
        strength = max(0.0, min(1.0, strength))
        gentle: dict[str, Any] = {name: getattr(self, name) * strength for name in PARTS}
        low, high = self.noise_snr_db
        return replace(
            self,
            **gentle,
            speed_range=_towards_one(self.speed_range, strength),
            vocal_tract_range=_towards_one(self.vocal_tract_range, strength),
            noise_snr_db=(high - (high - low) * strength, high),
            level_db=(self.level_db[0] * strength, self.level_db[1] * strength),
        )


_OFF: dict[str, Any] = dict.fromkeys((*PARTS, "level", "nothing"), 0.0)
NO_AUGMENT = replace(AugmentConfig(), **_OFF)


@dataclass(frozen=True)
class FeatureMasks:
    """What SpecAugment and SpecCutout mask in the features; zeros switch them off."""

    time_masks: int = 0
    time_frames: int = 75
    mel_masks: int = 0
    mel_bins: int = 20
    rectangles: int = 0
    rectangle_frames: int = 120
    rectangle_bins: int = 50

    def __post_init__(self) -> None:
        check("masks", self, NOUGHT_OR_MORE, "time_masks", "time_frames", "mel_masks", "mel_bins")
        check("masks", self, NOUGHT_OR_MORE, "rectangles", "rectangle_frames", "rectangle_bins")


NO_MASKS = FeatureMasks()


def _towards_one(limits: tuple[float, float], strength: float) -> tuple[float, float]:
    """A range of factors drawn in towards 1."""
    return (1 + (limits[0] - 1) * strength, 1 + (limits[1] - 1) * strength)
