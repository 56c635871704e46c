"""The benchmark of the forecasters: its parts run, its page names what was missed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import benchmark_timeseries

    yield benchmark_timeseries
    for name in ("benchmark_timeseries", "benchmark_core"):
        sys.modules.pop(name)


def test_parts_run_and_the_page_is_honest(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "SERIES", 3)
    options = benchmark.parse(["--windows", "4", "--paths", "5", "--batch", "2"])
    for kind in benchmark.FORECASTERS.values():
        sample, step = benchmark.ours(kind, options)
        step()
        assert sample().shape == (4, 5, 24)
    times = {"AQF": 2.0, "DeepAR": 1.0, "MQ-RNN": 1.0, "GluonTS DeepAR": 4.0}
    report = {"sampling": times, "steps": times, "machine": "a machine", **vars(options)}
    report["goals"] = benchmark.goals(report)
    page = benchmark.page(report)
    assert "| sampling, AQF / GluonTS DeepAR | 0.50 | <= 1.0 | yes |" in page
    assert "| training step, AQF / our DeepAR | 2.00 | <= 1.3 | **no** |" in page
    assert "Missed goals: training step, AQF / our DeepAR." in page
