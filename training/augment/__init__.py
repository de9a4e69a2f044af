"""Audio and feature augmentation on the training device.

Every waveform function takes float32 rows `[rows, samples]` at 16 kHz, right-padded, with their `lengths`. Random
values come from the `torch.Generator` that is passed in; a CPU generator gives the same values for every device.
`augment_batch` in chain.py applies the whole chain.
"""
