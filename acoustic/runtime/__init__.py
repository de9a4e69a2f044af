"""Running a model: one small interface, a CPU backend on ONNX Runtime and a GPU backend on PyTorch."""

from acoustic.runtime.backend import Backend, hear_stream, stream_pieces
from acoustic.runtime.open import open_backend

__all__ = ["Backend", "hear_stream", "open_backend", "stream_pieces"]
