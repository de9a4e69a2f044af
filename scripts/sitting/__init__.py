"""What scripts/pack_sitting.py and scripts/gpu_sitting.py share: a training carried to a lent GPU in parcels."""
