"""Opens a model on a device. A backend's libraries are imported only when it is opened."""

from pathlib import Path

from acoustic import catalogue
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.runtime.backend import Backend, DeviceKind, Precision


def open_backend(
    model: str | Path | Checkpoint, device: DeviceKind = "cpu", precision: Precision | None = None
) -> Backend:
    """A model by name, file or value, on a device. Default precision: the fastest that it is ready for."""
    checkpoint = model if isinstance(model, Checkpoint) else catalogue.find(model)
    if device == "cpu":
        from acoustic.runtime.cpu import CpuBackend

        return CpuBackend(checkpoint, precision)
    if device == "cuda":
        from acoustic.runtime.gpu import GpuBackend

        return GpuBackend(checkpoint, "cuda", precision)
    raise AcousticError(f"There is no device {device!r}: expected cpu or cuda.")
