"""A small convolutional tagger for punctuation and capitals: numpy inference, PyTorch training."""
