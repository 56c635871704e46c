"""Metrics by their definitions, for arrays and tensors alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Normal

from aqf_core import metrics
from aqf_core.errors import LevelError, NonFiniteError, ShapeError, UnknownNameError

RNG = np.random.default_rng(0)
N = 500
LEVELS = np.arange(1, 200) / 200
Y = RNG.normal(1.0, 2.0, size=N)
QUANTILES = np.broadcast_to(stats.norm(1.0, 2.0).ppf(LEVELS), (N, 199))
SAMPLES = RNG.normal(1.0, 2.0, size=(40, N))
VECTORS = RNG.normal(size=(20, N, 3))

CALLS: dict[str, tuple[Any, ...]] = {
    "calibration_curve": (LEVELS, QUANTILES, Y),
    "calibration_mae": (LEVELS, QUANTILES, Y),
    "check_score": (LEVELS, QUANTILES, Y),
    "coverage": (Y - 1, Y + 1, Y),
    "crossing_rate": (QUANTILES,),
    "crps_from_quantiles": (LEVELS, QUANTILES, Y),
    "crps_from_samples": (SAMPLES, Y),
    "crps_gaussian": (np.ones(N), np.full(N, 2.0), Y),
    "crps_gaussian_mixture": (np.full((N, 2), 0.5), np.ones((N, 2)), np.full((N, 2), 2.0), Y),
    "crps_interpolated": (LEVELS, QUANTILES, Y),
    "energy_score": (VECTORS, VECTORS[0]),
    "interval_width": (Y - 1, Y + 1),
    "mae": (Y, Y + 1),
    "nd": (Y, Y + 1),
    "nrmse": (Y, Y + 1),
    "pit_from_quantiles": (LEVELS, QUANTILES, Y),
    "rmse": (Y, Y + 1),
    "weighted_quantile_loss": (LEVELS, QUANTILES, Y),
    "winkler_score": (Y - 1, Y + 1, Y, 0.9),
    "calibration_curve_from_pit": (np.linspace(0.013, 0.989, 50),),
    "calibration_mae_from_pit": (np.linspace(0.013, 0.989, 50),),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_numpy_and_torch_agree_and_answer_in_kind(name: str) -> None:
    metric = getattr(metrics, name)
    arrays = CALLS[name]
    tensors = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    by_numpy, by_torch = metric(*arrays), metric(*tensors)
    assert isinstance(by_numpy, np.ndarray | np.floating)
    assert isinstance(by_torch, torch.Tensor)
    assert np.allclose(by_numpy, by_torch.numpy(), rtol=1e-12)
    single = [a.float() if isinstance(a, torch.Tensor) else a for a in tensors]
    assert metric(*single).dtype == torch.float32
    assert np.allclose(by_numpy, metric(*single).numpy(), rtol=1e-3, atol=1e-4)
    broken = [np.full_like(a, np.nan) if isinstance(a, np.ndarray) else a for a in arrays]
    with pytest.raises(NonFiniteError):
        metric(*broken)


def test_check_score_by_its_definition() -> None:
    error = Y[:, None] - QUANTILES
    pinball = np.where(error > 0, LEVELS * error, (LEVELS - 1) * error)
    assert np.isclose(metrics.check_score(LEVELS, QUANTILES, Y), pinball.mean())
    assert np.allclose(metrics.check_score(LEVELS, QUANTILES, Y, "none"), pinball.mean(1))
    wql = 2 * pinball.sum(0) / np.abs(Y).sum()
    assert np.isclose(metrics.weighted_quantile_loss(LEVELS, QUANTILES, Y), wql.mean())


def test_crps_estimators_agree_with_the_closed_form() -> None:
    exact = scoringrules.crps_normal(Y, 1.0, 2.0)
    assert np.allclose(metrics.crps_gaussian(np.ones(N), np.full(N, 2.0), Y, "none"), exact)
    assert np.isclose(metrics.crps_from_quantiles(LEVELS, QUANTILES, Y), exact.mean(), rtol=1e-3)
    assert np.isclose(metrics.crps_interpolated(LEVELS, QUANTILES, Y), exact.mean(), rtol=1e-5)
    few = np.arange(1, 10) / 10
    table = np.broadcast_to(stats.norm(1.0, 2.0).ppf(few), (N, 9))
    assert np.isclose(metrics.crps_interpolated(few, table, Y), exact.mean(), rtol=5e-3)
    theirs = scoringrules.crps_ensemble(Y, SAMPLES.T, estimator="fair")
    assert np.allclose(metrics.crps_from_samples(SAMPLES, Y, reduction="none"), theirs)
    assert np.isclose(metrics.crps_from_samples(SAMPLES, Y), exact.mean(), rtol=0.05)


def test_voronoi_weights() -> None:
    u = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    expected = torch.tensor([0.15, 0.3, 0.55], dtype=torch.float64)
    assert torch.allclose(metrics.voronoi_weights(u), expected)
    assert metrics.voronoi_weights(torch.tensor([0.3])) == 1
    middle = (torch.arange(7) + 0.5) / 7
    assert torch.allclose(metrics.voronoi_weights(middle), torch.full((7,), 1 / 7))


def test_calibration_of_a_perfect_and_an_overconfident_model() -> None:
    y = np.random.default_rng(1).normal(size=20_000)
    u = metrics.percent_levels(torch.float64).numpy()
    perfect = np.broadcast_to(stats.norm.ppf(u), (len(y), 99))
    mae = metrics.calibration_mae(u, perfect, y)
    assert mae < 3 * metrics.calibration_mae_floor(len(y))
    narrow = metrics.calibration_mae(u, 0.5 * perfect, y)
    observed = stats.norm.cdf(0.5 * stats.norm.ppf(u))
    assert np.isclose(narrow, np.abs(observed - u).mean(), atol=0.005)
    assert np.allclose(metrics.calibration_curve(u, 0.5 * perfect, y), observed, atol=0.02)
    by_pit = metrics.calibration_mae_from_pit(stats.norm.cdf(2 * y))
    assert np.isclose(narrow, by_pit, atol=1e-12)


def test_calibration_floor_is_what_a_perfect_model_gets() -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (20, 77, 300):
        pit = torch.rand(2000, n, generator=generator, dtype=torch.float64)
        u = metrics.percent_levels(torch.float64)
        observed = (
            (pit.unsqueeze(-1) <= u).double().mean(1)
            if n < 100
            else torch.stack([(pit <= level).double().mean(1) for level in u], -1)
        )
        simulated = float((observed - u).abs().mean())
        assert metrics.calibration_mae_floor(n) == pytest.approx(simulated, rel=0.02)


def test_pit_is_uniform_in_every_form() -> None:
    def distance(values: Any) -> float:
        return float(stats.kstest(np.asarray(values), "uniform").statistic)

    critical = 1.63 / N**0.5  # one in a hundred
    dist = Normal(torch.tensor(1.0, dtype=torch.float64), 2.0)
    assert distance(metrics.pit(dist, Y)) < critical
    assert isinstance(metrics.pit(dist, Y), np.ndarray)
    assert distance(metrics.pit_from_quantiles(LEVELS, QUANTILES, Y)) < critical
    exact = stats.norm(1.0, 2.0).cdf(Y)
    assert np.allclose(metrics.pit_from_quantiles(LEVELS, QUANTILES, Y), exact, atol=2e-3)
    generator = torch.Generator().manual_seed(0)
    assert distance(metrics.pit_from_samples(SAMPLES, Y, generator)) < critical
    small = RNG.integers(0, 3, size=(4, 3000))  # tiny ensembles of few discrete values
    pit = metrics.pit_from_samples(small, RNG.integers(0, 3, size=3000), generator)
    assert distance(pit) < 1.63 / 3000**0.5


def test_intervals_by_their_definitions() -> None:
    low, high = np.array([0.0, 0.0, 0.0]), np.array([1.0, 1.0, 2.0])
    y = np.array([0.0, 1.5, -0.5])
    assert np.allclose(metrics.coverage(low, high, y, "none"), [1, 0, 0])
    assert np.isclose(metrics.interval_width(low, high), 4 / 3)
    winkler = metrics.winkler_score(low, high, y, 0.9, "none")
    assert np.allclose(winkler, scoringrules.interval_score(y, low, high, 0.1))


def test_the_winkler_score_prefers_the_true_interval() -> None:
    y = RNG.normal(size=20_000)
    scores = [float(metrics.winkler_score(-z, z, y, 0.9)) for z in (1.3, 1.645, 2.0)]
    assert scores[1] == min(scores)


def test_point_errors() -> None:
    p, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 7.0])
    assert metrics.mae(p, y) == 2
    assert np.isclose(metrics.rmse(p, y), (20 / 3) ** 0.5)
    assert np.isclose(metrics.nd(p, y), 6 / 8)
    assert np.isclose(metrics.nrmse(p, y), (20 / 3) ** 0.5 / (8 / 3))


def test_crossing_rate() -> None:
    assert metrics.crossing_rate(QUANTILES) == 0
    assert metrics.crossing_rate(QUANTILES[:, ::-1]) == 1


def test_d_loss_sees_differences_only_where_there_are_any() -> None:
    rng = np.random.default_rng(0)
    real, same = rng.normal(size=(300, 4)), rng.normal(size=(400, 4))
    assert 0.4 < metrics.d_loss(real, same) < 0.6
    correlated = rng.normal(size=(300, 1)) + 0.2 * rng.normal(size=(300, 4))
    assert metrics.d_loss(real, correlated) > 0.8
    assert metrics.d_loss(torch.tensor(real), torch.tensor(real) + 9) == 1
    assert metrics.d_loss(real, same, seed=1) == metrics.d_loss(real, same, seed=1)
    with pytest.raises(ShapeError, match="share d"):
        metrics.d_loss(real, real[:, :2])
    with pytest.raises(ShapeError, match="5 folds"):
        metrics.d_loss(real[:3], real)


def test_tables_of_the_wrong_shape_or_order() -> None:
    with pytest.raises(ShapeError, match="share K"):
        metrics.check_score(LEVELS[:5], QUANTILES, Y)
    with pytest.raises(ShapeError, match="need y of shape"):
        metrics.crps_from_quantiles(LEVELS, QUANTILES, Y[:5])
    with pytest.raises(LevelError, match="increasing"):
        metrics.calibration_mae(LEVELS[::-1], QUANTILES, Y)
    with pytest.raises(LevelError, match="percentages"):
        metrics.check_score(LEVELS * 100, QUANTILES, Y)
    with pytest.raises(ShapeError, match="empty"):
        metrics.rmse(np.zeros(0), np.zeros(0))
    with pytest.raises(LevelError, match="strictly between"):
        metrics.winkler_score(Y, Y, Y, 1.0)
    with pytest.raises(LevelError):
        metrics.calibration_mae_from_pit(np.array([1.2]))
    with pytest.raises(UnknownNameError):
        metrics.coverage(Y, Y, Y, "median")


def test_columns_are_not_paired_with_rows() -> None:
    column = Y[:, None]
    for call in (
        lambda: metrics.mae(column, Y),
        lambda: metrics.coverage(column, column, Y),
        lambda: metrics.crps_gaussian(column, np.ones(N), Y),
        lambda: metrics.crps_from_samples(SAMPLES[..., None], Y),
        lambda: metrics.pit_from_samples(SAMPLES[..., None], Y),
    ):
        with pytest.raises(ShapeError, match="each with each"):
            call()
    with pytest.raises(ShapeError, match="do not broadcast"):
        metrics.rmse(Y[:3], Y)
    assert metrics.mae(np.array(0.0), Y) == pytest.approx(np.abs(Y).mean())


def test_any_batch_shape_and_mixed_kinds() -> None:
    q, y = torch.rand(2, 3, 99), torch.rand(2, 3)
    u = metrics.percent_levels()
    assert metrics.crps_from_quantiles(u, q.sort(-1).values, y, "none").shape == (2, 3)
    assert metrics.calibration_curve(u.numpy(), q, y).shape == (99,)
    assert isinstance(metrics.rmse(np.zeros(3), torch.ones(3)), torch.Tensor)
    integers = metrics.mae([1, 2], [2, 4])  # type: ignore[type-var]
    assert integers == 1.5 and integers.dtype == np.float64


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32))
@settings(max_examples=50, deadline=None)
def test_constant_predictions_score_the_absolute_error(q: float, y: float) -> None:
    table = np.full((3, 199), q)
    observed = np.full(3, y)
    error = abs(q - y)
    tolerance = 1e-9 * (1 + abs(q) + abs(y))
    for crps in (metrics.crps_from_quantiles, metrics.crps_interpolated):
        assert crps(LEVELS, table, observed) == pytest.approx(error, abs=tolerance)
    ensemble = np.full((5, 3), q)
    assert metrics.crps_from_samples(ensemble, observed) == pytest.approx(error, abs=tolerance)


def test_every_metric_is_defined_on_the_metrics_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert not [name for name in metrics.__all__ if f"`{name}`" not in page]
