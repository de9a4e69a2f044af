"""Audio and feature augmentation on the training device.

Every waveform function takes float32 rows `[rows, samples]` at 16 kHz, right-padded, with their `lengths`. Random
values come from the `torch.Generator` that is passed in; a CPU generator gives the same values for every device.
`augment_batch` in chain.py applies the whole chain.
"""

from training.augment.band_limit import band_limit, telephone
from training.augment.chain import AugmentedBatch, NoiseBanks, augment_batch
from training.augment.codecs import a_law, bit_crush, mu_law, through_codec
from training.augment.level import apply_gain, mix, random_segments
from training.augment.reverb import reverberate, simulate_rirs
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
    "simulate_rirs",
    "spec_augment",
    "spec_cutout",
    "telephone",
    "through_codec",
]
