"""The GPU latency benchmark (`benchmarks/acoustic.py`), run on a CPU without CUDA graphs."""

import pytest

from benchmarks import acoustic as benchmark


def test_gpu_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "GPU_SECONDS", (0.5,))
    monkeypatch.setattr(benchmark, "GPU_BATCHES", (1, 2))
    table = benchmark.gpu_table("cpu", ["tiny"], iterations=2)
    rows = table["latency_ms"]
    assert [(row["seconds"], row["batch"]) for row in rows] == [(0.5, 1), (0.5, 2)]
    assert all(row[name] > 0 for row in rows for name in ("avg", "p90", "p95", "p99", "graph_avg"))
    lines = benchmark.markdown(table).splitlines()
    assert lines[1] == "| model | seconds | batch | avg ms | p90 | p95 | p99 | graph only |"
    assert lines[3].startswith("| tiny fp32 | 0.5 | 1 |")
    assert table["commit"] and table["machine"]


def test_gpu_table_has_the_published_models_and_shapes() -> None:
    assert benchmark.GPU_MODELS == ("jasper10x5dr", "quartznet15x5")
    assert benchmark.GPU_SECONDS == (2.0, 7.0, 16.7)
    assert benchmark.GPU_BATCHES == (1, 2, 4, 8, 16)
