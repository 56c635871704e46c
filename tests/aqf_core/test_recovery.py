"""The recovery benchmark: its oracle, its book-keeping, and a reduced run of every family."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = ROOT / "tools" / "benchmark_recovery.py"
    spec = importlib.util.spec_from_file_location("benchmark_recovery", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PROBLEMS = ["bimodal", "skewed", "heavy_tailed", "bounded", "discrete"]


@pytest.mark.parametrize("name", PROBLEMS)
def test_oracle_is_the_distribution_of_the_data(benchmark: ModuleType, name: str) -> None:
    """The CDF fits the draws, and its CRPS is E|Y - Y'| / 2."""
    problem, rng = benchmark.PROBLEMS[name](), np.random.default_rng(0)
    c = np.repeat(rng.uniform(-1, 1, (5, benchmark.CONTEXT)), 20_000, axis=0)
    y, other = problem.draw(rng, c).reshape(5, -1), problem.draw(rng, c).reshape(5, -1)
    points = np.quantile(y, [0.1, 0.5, 0.9]) + (0.01 if name == "discrete" else 0.0)
    empirical = np.stack([(y <= t).mean(1) for t in points], 1)
    assert np.abs(problem.cdf(points, c[::20_000]) - empirical).max() < 0.02
    truth = problem.cdf(0.5 * (problem.grid[1:] + problem.grid[:-1]), c[::20_000])
    oracle = truth * (1 - truth) @ np.diff(problem.grid)
    assert np.allclose(oracle, np.abs(y - other).mean(1) / 2, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("problem, limit", [("bimodal", 2.5), ("heavy_tailed", 1.5)])
def test_every_expressive_family_recovers(
    benchmark: ModuleType, problem: str, limit: float
) -> None:
    """A fifth of the benchmark's training, with limits to match; the Gaussian stays at 13 %."""
    torch.set_num_threads(1)
    recipe = benchmark.Recipe(steps=400, batch=256)
    for family in benchmark.EXPRESSIVE:
        result = benchmark.run_one(problem, family, "quantile", 0, recipe, contexts=50)
        assert result.excess < limit, family


def test_runs_are_resumed_and_reported(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "runs" / "recovery.jsonl", tmp_path / "recovery.md"
    args = ["--families", "affine", "--problems", "bounded", "--directions", "quantile"]
    args += ["--seconds", "0.05", "--out", str(out), "--markdown", str(page)]
    benchmark.main([*args, "--seeds", "1"])
    first = out.read_text()
    benchmark.main([*args, "--seeds", "2"])
    lines = out.read_text().splitlines()
    assert out.read_text().startswith(first) and len(lines) == 2
    assert [json.loads(line)["seed"] for line in lines] == [0, 1]
    assert "| affine | quantile |" in page.read_text()
    assert "| affine | quantile |" in capsys.readouterr().out


def test_missed_goals_are_named(benchmark: ModuleType) -> None:
    good = benchmark.Result("bimodal", "spline", "quantile", 0, 5.0, 0.4, 1.0, 10)
    bad = benchmark.Result("heavy_tailed", "spline", "quantile", 0, 5.0, 1.4, 1.0, 10)
    baseline = benchmark.Result("bimodal", "affine", "quantile", 0, 5.0, 14.0, 1.0, 10)
    (sentence,) = benchmark.missed_goals([good, bad, baseline])
    assert "spline" in sentence and "heavy_tailed" in sentence and "1.40 %" in sentence
