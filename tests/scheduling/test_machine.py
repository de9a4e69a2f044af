"""What is left to us of the machine."""

from pathlib import Path

import pytest

from service.scheduling.machine import Machine, busy_s


def test_what_others_use_is_not_ours_and_what_we_use_is() -> None:
    machine = Machine(4)
    assert machine.look(0.0, 100.0, 10.0) == 4.0
    assert machine.look(1.0, 102.0, 11.5) == pytest.approx(3.5)
    for second in range(2, 200):
        left = machine.look(float(second), 102.0 + 2.0 * (second - 1), 11.5)
    assert left == pytest.approx(2.0, abs=0.01)


def test_a_share_is_always_left_and_a_machine_that_tells_nothing_is_ours() -> None:
    machine = Machine(2)
    machine.look(0.0, 0.0, 0.0)
    assert machine.look(1.0, 2.0, 0.0) == 0.5
    silent = Machine(8)
    assert [silent.look(float(second), None, 1.0) for second in range(3)] == [8.0] * 3


def test_the_kernels_page_is_read(tmp_path: Path) -> None:
    page = tmp_path / "stat"
    page.write_text("cpu  100 50 200 900 30 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert busy_s(page) in (3.0, 3.5)  # the latter when the tests themselves run niced
    page.write_text("nothing of the kind")
    assert busy_s(page) is None and busy_s(tmp_path / "none") is None
