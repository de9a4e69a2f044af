"""The script that makes the GPU's latency tables, rehearsed on a CPU with the graphs off: small, but all of it."""

import pytest

from benchmarks import acoustic as perf


def test_the_table_of_the_gpu_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "GPU_SECONDS", (0.5,))
    monkeypatch.setattr(perf, "GPU_BATCHES", (1, 2))
    table = perf.gpu_table("cpu", ["tiny"], iterations=2)
    rows = table["latency_ms"]
    assert [(row["seconds"], row["batch"]) for row in rows] == [(0.5, 1), (0.5, 2)]
    assert all(row[name] > 0 for row in rows for name in ("avg", "p90", "p95", "p99", "graph_avg"))
    shown = perf.markdown(table).splitlines()
    assert shown[1] == "| model | seconds | batch | avg ms | p90 | p95 | p99 | graph only |"
    assert shown[3].startswith("| tiny fp32 | 0.5 | 1 |")
    assert table["commit"] and table["machine"]


def test_the_models_and_shapes_are_the_published_ones() -> None:
    assert perf.GPU_MODELS == ("jasper10x5dr", "quartznet15x5")
    assert perf.GPU_SECONDS == (2.0, 7.0, 16.7)
    assert perf.GPU_BATCHES == (1, 2, 4, 8, 16)
