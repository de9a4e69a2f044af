"""Opens a model on a device; imports only that backend's libraries."""

from pathlib import Path

from acoustic import catalogue
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.runtime.backend import Backend, DeviceKind, Precision


def open_backend(
    model: str | Path | Checkpoint, device: DeviceKind = "cpu", precision: Precision | None = None
) -> Backend:
    """Open a model by name, path or value. Default precision: FP16 on a GPU; on a CPU INT8 if calibrated, else FP32."""
    checkpoint = model if isinstance(model, Checkpoint) else catalogue.find(model)
    if device == "cpu":
        from acoustic.runtime.cpu import CpuBackend

        return CpuBackend(checkpoint, precision)
    if device == "cuda":
        from acoustic.runtime.gpu import GpuBackend

        return GpuBackend(checkpoint, "cuda", precision)
    raise AcousticError(f"Unknown device {device!r}: expected cpu or cuda.")
