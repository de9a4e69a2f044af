"""Numeric precision of a run: FP32, TF32, BF16, or FP16 with automatic loss scaling."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from training.errors import TrainingError

NAMES = ("fp32", "tf32", "bf16", "fp16")
AUTO = "auto"
"""In a recipe: the fastest precision of the device (`fastest_precision`)."""

MIN_SPEEDUP = 1.5
"""On a CPU, BF16 is chosen if its matrix products are faster by this factor."""


@dataclass(frozen=True)
class Precision:
    """One of NAMES on one device. Weights and optimizer state are always FP32."""

    name: str
    device: torch.device

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise TrainingError(f"Unknown precision {self.name!r}: expected one of {', '.join(NAMES)}.")
        if self.name in ("tf32", "fp16") and self.device.type != "cuda":
            raise TrainingError(f"{self.name} needs a CUDA device; on a CPU use fp32 or bf16.")

    @contextmanager
    def autocast(self, *, cache: bool = True) -> Iterator[None]:
        """The context of the forward pass. `cache` False: no cached weight casts, as CUDA graph capture needs."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None, cache_enabled=cache):
            yield

    def scaler(self) -> torch.amp.GradScaler:
        """The gradient scaler; active for FP16 only."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")

    def set_tf32(self) -> None:
        """Enable TF32 for `tf32`, `bf16` and `fp16`, disable it for `fp32`, so that fp32 is a true reference."""
        if self.device.type != "cuda":
            return
        tf32 = self.name != "fp32"
        # The older of two APIs: torch 2.6 and 2.13 both have it, and mixing the two is an error.
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32


def fastest_precision(device: torch.device) -> str:
    """BF16 where the hardware supports it. On a CPU it is measured: emulated BF16 is up to forty times slower."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if _matmul_s(torch.float32) > MIN_SPEEDUP * _matmul_s(torch.bfloat16) else "fp32"


def _matmul_s(dtype: torch.dtype, turns: int = 20) -> float:
    matrix = torch.ones(384, 384, dtype=dtype)
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        times.append(time.perf_counter() - began)
    return min(times)
