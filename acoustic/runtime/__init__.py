"""Runs models: one interface, a CPU backend on ONNX Runtime and a GPU backend on PyTorch."""

from acoustic.runtime.backend import Backend, iter_stream_log_probs, stream_log_probs
from acoustic.runtime.open import open_backend

__all__ = ["Backend", "iter_stream_log_probs", "open_backend", "stream_log_probs"]
