"""Jasper and QuartzNet networks in PyTorch, built from a ModelConfig."""

from acoustic.network.network import Network, build

__all__ = ["Network", "build"]
