"""INT8: the value ranges of activations."""
