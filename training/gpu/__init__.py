"""Training at the speed of a GPU: packed data, batches of few shapes resident on the device, CUDA graphs.

The objective, the augmentation, the optimizer, the average and the loop are those of every other run (training/run/).
"""
