"""How many processors other programs and quotas leave."""

from pathlib import Path

import pytest

from service.scheduling.cpu_budget import CpuBudget, busy_cpu_s, cpu_quota


def test_processors_of_other_programs_are_subtracted() -> None:
    budget = CpuBudget(4)
    assert budget.update(0.0, 100.0, 10.0) == 4.0
    assert budget.update(1.0, 102.0, 11.5) == pytest.approx(3.5)
    for second in range(2, 200):
        left = budget.update(float(second), 102.0 + 2.0 * (second - 1), 11.5)
    assert left == pytest.approx(2.0, abs=0.01)


def test_a_minimum_share_remains_and_without_statistics_everything_does() -> None:
    budget = CpuBudget(2)
    budget.update(0.0, 0.0, 0.0)
    assert budget.update(1.0, 2.0, 0.0) == 0.5
    unknown = CpuBudget(8)
    assert [unknown.update(float(second), None, 1.0) for second in range(3)] == [8.0] * 3


def test_a_container_quota_below_the_processor_count_applies(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    for text, expected in (
        ("150000 100000", 1.5),
        ("50000 100000", 0.5),
        ("max 100000", 4),
        ("", 4),
        ("9 0", 4),
    ):
        quota.write_text(text + "\n")
        assert cpu_quota(4, quota) == expected
    quota.write_text("800000 100000\n")
    assert cpu_quota(4, quota) == 4 and cpu_quota(4, tmp_path / "none") == 4


def test_busy_time_is_read_from_proc_stat_for_the_given_processors(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  200 50 400 900 30 0 0 0 0 0\ncpu0 100 50 200 900 30 0 0 0 0 0\n"
        "cpu1 100 0 200 1 1 0 0 0 0 0\ncpu10 9 9 9 9 9 9 9 9 9 9\nintr 5\n"
    )
    assert busy_cpu_s({0}, stat) in (3.0, 3.5)  # the latter if the tests run niced
    assert busy_cpu_s({0, 1}, stat) in (6.0, 6.5)
    assert busy_cpu_s({7}, stat) is None
    stat.write_text("not /proc/stat")
    assert busy_cpu_s({0}, stat) is None and busy_cpu_s({0}, tmp_path / "none") is None
