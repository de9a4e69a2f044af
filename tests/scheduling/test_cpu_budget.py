"""What is left to us of the machine."""

from pathlib import Path

import pytest

from service.scheduling.cpu_budget import CpuBudget, busy_cpu_s, cpu_quota


def test_what_others_use_is_not_ours_and_what_we_use_is() -> None:
    machine = CpuBudget(4)
    assert machine.update(0.0, 100.0, 10.0) == 4.0
    assert machine.update(1.0, 102.0, 11.5) == pytest.approx(3.5)
    for second in range(2, 200):
        left = machine.update(float(second), 102.0 + 2.0 * (second - 1), 11.5)
    assert left == pytest.approx(2.0, abs=0.01)


def test_a_share_is_always_left_and_a_machine_that_tells_nothing_is_ours() -> None:
    machine = CpuBudget(2)
    machine.update(0.0, 0.0, 0.0)
    assert machine.update(1.0, 2.0, 0.0) == 0.5
    silent = CpuBudget(8)
    assert [silent.update(float(second), None, 1.0) for second in range(3)] == [8.0] * 3


def test_a_containers_quota_counts_where_it_is_less_than_the_machine(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    for told, expected in (
        ("150000 100000", 1.5),
        ("50000 100000", 0.5),
        ("max 100000", 4),
        ("", 4),
        ("9 0", 4),
    ):
        quota.write_text(told + "\n")
        assert cpu_quota(4, quota) == expected
    quota.write_text("800000 100000\n")
    assert cpu_quota(4, quota) == 4 and cpu_quota(4, tmp_path / "none") == 4


def test_the_kernels_page_is_read_and_other_processors_are_none_of_our_business(tmp_path: Path) -> None:
    page = tmp_path / "stat"
    page.write_text(
        "cpu  200 50 400 900 30 0 0 0 0 0\ncpu0 100 50 200 900 30 0 0 0 0 0\n"
        "cpu1 100 0 200 1 1 0 0 0 0 0\ncpu10 9 9 9 9 9 9 9 9 9 9\nintr 5\n"
    )
    assert busy_cpu_s({0}, page) in (3.0, 3.5)  # the latter when the tests themselves run niced
    assert busy_cpu_s({0, 1}, page) in (6.0, 6.5)
    assert busy_cpu_s({7}, page) is None
    page.write_text("nothing of the kind")
    assert busy_cpu_s({0}, page) is None and busy_cpu_s({0}, tmp_path / "none") is None
