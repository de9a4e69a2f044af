"""Alterations of sound and features, on the training device.

Every function takes a batch `[rows, samples]` of float32 at 16 kHz (rows right-padded, with `lengths`) and
returns a new batch; what is drawn at random comes from the `torch.Generator` that is passed in, so a seed
repeats a batch. A CPU generator draws the same on every device. `augment_batch` in chain.py is the whole chain; its
parts can be used alone.
"""

from training.augment.band_limit import band_limit, telephone
from training.augment.chain import AugmentedBatch, NoiseBanks, augment_batch
from training.augment.codecs import a_law, bit_crush, mu_law, through_codec
from training.augment.level import apply_gain, mix, random_segments
from training.augment.reverb import reverberate, simulate_rooms
from training.augment.spec_augment import mask_features, spec_augment, spec_cutout
from training.augment.speed import change_speed
from training.augment.vtlp import apply_vtlp

__all__ = [
    "AugmentedBatch",
    "NoiseBanks",
    "a_law",
    "apply_gain",
    "apply_vtlp",
    "augment_batch",
    "band_limit",
    "bit_crush",
    "change_speed",
    "mask_features",
    "mix",
    "mu_law",
    "random_segments",
    "reverberate",
    "simulate_rooms",
    "spec_augment",
    "spec_cutout",
    "telephone",
    "through_codec",
]
