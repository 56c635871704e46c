"""The benchmark of the estimators: its parts run, its page names what was missed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import benchmark_tabular

    yield benchmark_tabular
    for name in ("benchmark_tabular", "benchmark_core"):
        sys.modules.pop(name)


def test_parts_run_and_the_page_is_honest(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = benchmark.QuantileFlowRegressor
    monkeypatch.setattr(
        benchmark,
        "QuantileFlowRegressor",
        lambda preset="default", **options: original(
            preset, **{"members": 2, **options, "steps": 30}
        ),
    )
    benchmark.step(2)()
    large = benchmark.large_fit(2000, 5)
    # No model beats the truth, and thirty steps come within sight of it.
    assert 0.95 * large["true_crps"] < large["crps"] < 2 * large["true_crps"]
    assert 0.7 < large["coverage"] < 1 and large["memory"] < 2048
    report = {
        "rows": 2000,
        "columns": 5,
        "threads": 2,
        "machine": "a machine",
        "steps": {"one": 1e-3, "ten": 3e-3, "ratio": 3.0},
        "fits": {"fast": benchmark.fit_seconds("fast"), "default": [1.0] * 4},
        "speed": {
            "fast": benchmark.rows_per_second("fast", 500, 5),
            "default": 30_000.0,
        },
        "large": large,
    }
    report["goals"] = benchmark.goals(report)
    page = benchmark.page(report)
    assert "| step of 10 members / step of one | 3.00 | <= 2.5 | **no** |" in page
    assert "step of 10 members" in next(x for x in page.splitlines() if x.startswith("Missed"))
    assert "30,000 | >= 20,000 | yes |" in page
