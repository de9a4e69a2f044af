"""Exports checkpoints as ONNX graphs, for whole utterances and for streams."""
