"""A home of their own for all tests of this folder, and one thread."""

from collections.abc import Iterator

import pytest
import torch

from acoustic.quantization import calibration


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of these tests lands in the tester's own cache; they share what they build."""
    monkeypatch.setenv("SILICA_HOME", str(tmp_path_factory.getbasetemp() / "home"))


@pytest.fixture(autouse=True)
def short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise has shown its range after ten seconds."""
    monkeypatch.setattr(calibration, "MIN_CALIBRATION_S", 10.0)


@pytest.fixture(autouse=True, scope="module")
def limit_to_one_thread() -> Iterator[None]:
    """Small products on several threads mostly wait for one another on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
