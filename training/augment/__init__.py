"""Alterations of sound and features, on the training device.

Every function takes a batch `[rows, samples]` of float32 at 16 kHz (rows right-padded, with `lengths`) and
returns a new batch; what is drawn at random comes from the `torch.Generator` that is passed in, so a seed
repeats a batch. A CPU generator draws the same on every device. `alter` in chain.py is the whole chain; its
parts can be used alone.
"""

from training.augment.band_limit import band_limit, telephone
from training.augment.chain import Altered, Banks, alter
from training.augment.codecs import a_law, mu_law, quantize, through_codec
from training.augment.level import change_level, mix, random_segments
from training.augment.reverb import reverberate, simulate_rooms
from training.augment.spec_augment import blot_out, spec_augment, spec_cutout
from training.augment.speed import change_speed
from training.augment.vtlp import warp_vocal_tract

__all__ = [
    "Altered",
    "Banks",
    "a_law",
    "alter",
    "band_limit",
    "blot_out",
    "change_level",
    "change_speed",
    "mix",
    "mu_law",
    "quantize",
    "random_segments",
    "reverberate",
    "simulate_rooms",
    "spec_augment",
    "spec_cutout",
    "telephone",
    "through_codec",
    "warp_vocal_tract",
]
