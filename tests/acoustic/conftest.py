"""Fixtures for all tests of this folder: a temporary SILICA_HOME, short calibration, one thread."""

from collections.abc import Iterator

import pytest
import torch

from acoustic.quantization import calibration


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SILICA_HOME that all tests of a run share, so that cached files are built once."""
    monkeypatch.setenv("SILICA_HOME", str(tmp_path_factory.getbasetemp() / "home"))


@pytest.fixture(autouse=True)
def short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds are enough to calibrate on noise."""
    monkeypatch.setattr(calibration, "MIN_CALIBRATION_S", 10.0)


@pytest.fixture(autouse=True, scope="module")
def limit_to_one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads of a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
