"""Arithmetic of a run: FP32, TF32, BF16, or FP16 with a loss scale that finds its own size."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from training.errors import TrainingError

NAMES = ("fp32", "tf32", "bf16", "fp16")
AUTO = "auto"
"""In a recipe: whatever is quickest where it runs (`fastest_precision`)."""

WORTH_IT = 1.5
"""BF16 must be so many times as fast in products to be chosen on a CPU."""


@dataclass(frozen=True)
class Precision:
    """One of NAMES on one device. Weights and optimizer are FP32 in all of them."""

    name: str
    device: torch.device

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise TrainingError(f"Unknown precision {self.name!r}: expected one of {', '.join(NAMES)}.")
        if self.name in ("tf32", "fp16") and self.device.type != "cuda":
            raise TrainingError(f"{self.name} needs a CUDA device; on a CPU take fp32 or bf16.")

    @contextmanager
    def autocast(self, *, cache: bool = True) -> Iterator[None]:
        """The forward pass happens in here. A CUDA graph is captured without the cache of converted weights."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None, cache_enabled=cache):
            yield

    def scaler(self) -> torch.amp.GradScaler:
        """The loss scale: real for FP16, without effect otherwise."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")

    def set_tf32(self) -> None:
        """TF32 on for `tf32`, `bf16` and `fp16`, off for `fp32`: a comparison of the two is then one."""
        if self.device.type != "cuda":
            return
        tf32 = self.name != "fp32"
        # The older of two ways to say it: both torch 2.6 and 2.13 know it, and mixing them is an error.
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32


def fastest_precision(device: torch.device) -> str:
    """BF16 where the device computes in it; a CPU that only pretends to is forty times slower, so it is measured."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if _product_s(torch.float32) > WORTH_IT * _product_s(torch.bfloat16) else "fp32"


def _product_s(dtype: torch.dtype, turns: int = 20) -> float:
    matrix = torch.ones(384, 384, dtype=dtype)
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        times.append(time.perf_counter() - began)
    return min(times)
