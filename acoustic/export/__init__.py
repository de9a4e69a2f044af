"""Checkpoints to ONNX graphs, whole-utterance and streaming."""
