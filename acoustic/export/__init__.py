"""Exports checkpoints as ONNX graphs, for complete utterances and for streams."""
