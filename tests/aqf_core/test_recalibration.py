"""Recalibration repairs what is broken, leaves alone what is not, and keeps its promises."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from torch.distributions import Exponential, Laplace, Normal

from aqf_core import GaussianPredictive, as_predictive
from aqf_core.errors import AQFError, DomainError, LevelError, ShapeError, UnknownNameError
from aqf_core.metrics import calibration_mae_from_pit
from aqf_core.recalibration import (
    RECALIBRATIONS,
    ConformalRecalibration,
    IsotonicRecalibration,
    SplineRecalibration,
    isotonic_regression,
    make_recalibration,
)

NAMES = sorted(RECALIBRATIONS)
SMOOTH = ["isotonic", "spline"]


def _gaussian(loc: float, scale: float) -> GaussianPredictive:
    return GaussianPredictive(*(torch.tensor(v, dtype=torch.float64) for v in (loc, scale)))


def _normal_data(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("loc", "scale"), [(0.0, 0.5), (0.7, 1.0), (0.0, 2.0)])
def test_repairs_a_wrong_gaussian(name: str, loc: float, scale: float) -> None:
    dist, y, test = _gaussian(loc, scale), _normal_data(1000), _normal_data(4000, seed=1)
    repaired = make_recalibration(name).fit(dist, y)(dist)
    oracle = _gaussian(0.0, 1.0).crps(test).mean()
    before, after = dist.crps(test).mean() / oracle - 1, repaired.crps(test).mean() / oracle - 1
    assert before > 0.07 and after < 0.005
    assert calibration_mae_from_pit(dist.cdf(test)) > 0.09
    assert calibration_mae_from_pit(repaired.cdf(test)) < 0.02
    assert repaired.mean == pytest.approx(0, abs=0.1)
    assert repaired.stddev == pytest.approx(1, abs=0.08)
    assert torch.allclose(
        repaired.quantiles(torch.tensor([0.1, 0.9]).double()).abs(),
        torch.tensor(1.2816).double(),
        atol=0.15,
    )


@pytest.mark.parametrize("name", NAMES)
def test_repairs_the_wrong_shape(name: str) -> None:
    torch.manual_seed(0)
    y = Exponential(1.0).sample((3000,)).double()
    dist = _gaussian(1.0, 1.0)
    repaired = make_recalibration(name).fit(dist, y)(dist)
    test = Exponential(1.0).sample((4000,)).double()
    assert calibration_mae_from_pit(repaired.cdf(test)) < 0.02
    oracle = (test - 1 + 2 * torch.exp(-test) - 0.5).mean()  # CRPS of the exponential law
    assert repaired.crps(test).mean() / oracle - 1 < 0.01


@pytest.mark.parametrize("name", SMOOTH)
def test_recalibrated_distribution_is_consistent(name: str) -> None:
    dist = as_predictive(Laplace(torch.tensor([0.0, 3.0]).double(), torch.ones(2).double()))
    repaired = make_recalibration(name).fit(dist, dist.sample((300,)) * 1.5)(dist)
    assert repaired.batch_shape == (2,) and repaired.sample((5,)).shape == (5, 2)
    u = torch.linspace(0.002, 0.998, 301, dtype=torch.float64).unsqueeze(1)
    x = repaired.icdf(u)
    assert (x.diff(dim=0) > 0).all()
    assert torch.allclose(repaired.cdf(x), u.expand_as(x), atol=1e-9)
    assert torch.allclose(repaired.from_base(repaired.to_base(x)), x)
    leaf = x.clone().requires_grad_()
    (density,) = torch.autograd.grad(repaired.cdf(leaf).sum(), leaf)
    assert torch.allclose(repaired.log_prob(x).exp(), density, rtol=1e-6)
    grid = torch.linspace(-30, 33, 100_001, dtype=torch.float64).unsqueeze(1)
    mass = torch.trapezoid(repaired.log_prob(grid).exp(), grid[:, 0], dim=0)
    assert torch.allclose(mass, torch.ones(2).double(), atol=2e-3)
    low, high = repaired.interval(0.8)
    assert torch.allclose(repaired.prob_between(low, high), torch.tensor(0.8).double())


@pytest.mark.parametrize("name", NAMES)
def test_float32_keeps_its_dtype_and_extreme_levels_are_finite(name: str) -> None:
    dist = GaussianPredictive(torch.zeros(3), torch.ones(3))
    repaired = make_recalibration(name).fit(torch.rand(200))(dist)
    for u in (0.0, 1e-6, 0.5, 1.0):
        q = repaired.icdf(torch.tensor(u))
        assert q.dtype == torch.float32 and torch.isfinite(q).all()
    assert torch.isfinite(repaired.cdf(torch.tensor([-1e6, 0.0, 1e6]))).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_map_per_column(name: str) -> None:
    loc = torch.tensor([0.0, 5.0, -2.0], dtype=torch.float64)
    scale = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    dist = GaussianPredictive(loc, scale)
    y = loc + _normal_data(3000).reshape(-1, 3)
    joint = make_recalibration(name, per_column=True).fit(dist, y)
    repaired = joint(dist.expand((4, 3)))
    assert repaired.icdf(torch.tensor(0.5)).shape == (4, 3)
    low, high = repaired.interval(0.8)
    assert torch.allclose(high - low, torch.tensor(2 * 1.2816).double(), rtol=0.12)
    for j in range(3):
        single = make_recalibration(name).fit(dist.cdf(y)[:, j])
        u = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
        columns = joint.levels(u.unsqueeze(1).expand(19, 3))
        assert torch.allclose(columns[:, j], single.levels(u), atol=2e-3)
    with pytest.raises(ShapeError, match="3 columns"):
        joint(_gaussian(0.0, 1.0)).icdf(torch.tensor([0.5, 0.5]))
    with pytest.raises(ShapeError, match=r"\(N, C\)"):
        make_recalibration(name, per_column=True).fit(torch.rand(10))


def test_few_observations_barely_change_a_good_prediction() -> None:
    dist, test = _gaussian(0.0, 1.0), _normal_data(4000, seed=9)
    oracle = dist.crps(test).mean()
    excess = [
        float(SplineRecalibration().fit(dist, _normal_data(50, seed))(dist).crps(test).mean())
        for seed in range(4)
    ]
    assert np.mean(excess) / float(oracle) - 1 < 0.03


# The conformal guarantee --------------------------------------------------------------------

REPETITIONS = 20_000


@pytest.mark.parametrize("n", [19, 50])
@pytest.mark.parametrize("law", ["normal", "skewed"])
def test_conformal_quantiles_are_valid_for_any_base(n: int, law: str) -> None:
    """Each column is one experiment: n calibration observations and a new one."""
    generator = torch.Generator().manual_seed(n)
    y = torch.randn(n + 1, REPETITIONS, generator=generator, dtype=torch.float64)
    y = y.exp() if law == "skewed" else y
    wrong = GaussianPredictive(
        torch.full((REPETITIONS,), 0.4, dtype=torch.float64),
        torch.full((REPETITIONS,), 0.3, dtype=torch.float64),
    )
    recalibrated = ConformalRecalibration(per_column=True).fit(wrong, y[:n])(wrong)
    error = 4 * 0.5 / REPETITIONS**0.5
    for u in (0.1, 0.33, 0.5, 0.8, 0.94):
        covered = float((y[n] <= recalibrated.icdf(torch.tensor(u))).double().mean())
        assert u - error <= covered <= u + 1 / (n + 1) + error
    for coverage in (0.5, 0.8, 0.9):
        low, high = recalibrated.interval(coverage)
        covered = float(((low <= y[n]) & (y[n] <= high)).double().mean())
        assert coverage - error <= covered <= coverage + 2 / (n + 1) + error


def test_conformal_levels_hit_exact_ranks() -> None:
    recalibration = ConformalRecalibration().fit(torch.arange(1, 100) / 100)
    dist = recalibration(torch.distributions.Uniform(0.0, 1.0))
    u = torch.arange(1, 100) / 100
    assert torch.allclose(dist.icdf(u), u, atol=1e-5)  # not one observation too many
    low, high = dist.interval(0.98)
    assert low == pytest.approx(0.01, abs=1e-5) and high == pytest.approx(0.99, abs=1e-5)
    with pytest.raises(LevelError, match="needs at least 199 calibration observations, got 99"):
        dist.interval(0.99)
    with pytest.raises(LevelError, match="infinitely many"):
        dist.interval(1.0)
    assert torch.allclose(dist.interval(0.0)[0], dist.interval(0.0)[1])
    with pytest.raises(DomainError, match="no density"):
        dist.log_prob(torch.tensor(0.5))


# Isotonic regression ------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.01, 10)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_isotonic_regression_matches_scikit_learn(points: list[tuple[float, float]]) -> None:
    y, w = (np.array(column) for column in zip(*points, strict=True))
    ours = isotonic_regression(torch.tensor(y), torch.tensor(w))
    theirs = IsotonicRegression().fit_transform(np.arange(len(y)), y, sample_weight=w)
    assert np.allclose(ours, theirs, atol=1e-8)


def test_isotonic_map_from_a_crossing_curve() -> None:
    u = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    observed = torch.tensor([0.2, 0.5, 0.4, 0.6, 1.0])
    recalibration = IsotonicRecalibration().fit_curve(u, observed)
    fitted = recalibration.levels(u.double())
    expected = torch.tensor([0.2, 0.45, 0.45, 0.6]).double()
    assert torch.allclose(fitted[:4], expected, atol=1e-3)
    assert (recalibration.levels(torch.linspace(0, 1, 101).double()).diff() >= 0).all()
    with pytest.raises(ShapeError, match="same shape"):
        IsotonicRecalibration().fit_curve(u, observed[:3])


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.2, 0.5, 0.5000001, 1.0]), min_size=2, max_size=30))
@settings(max_examples=15, deadline=None)
def test_ties_and_extremes_never_break_the_map(pit: list[float]) -> None:
    dist = _gaussian(0.0, 1.0)
    for name in NAMES:
        repaired = make_recalibration(name).fit(torch.tensor(pit, dtype=torch.float64))(dist)
        x = repaired.icdf(torch.linspace(0, 1, 21, dtype=torch.float64))
        assert torch.isfinite(x).all() and (x.diff() >= 0).all()
        crps = repaired.crps(torch.tensor(0.3, dtype=torch.float64))
        assert torch.isfinite(crps) and crps >= 0


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_repr(name: str) -> None:
    dist = as_predictive(Normal(torch.zeros(2), 1.0))
    recalibration = make_recalibration(name).fit(torch.rand(50))
    u = torch.tensor(0.3)
    for clone in (copy.deepcopy(recalibration), pickle.loads(pickle.dumps(recalibration))):
        assert torch.equal(clone(dist).icdf(u), recalibration(dist).icdf(u))
    assert type(recalibration).__name__ in repr(recalibration(dist))


def test_numpy_pit_values_are_fine() -> None:
    recalibration = IsotonicRecalibration().fit(np.linspace(0.2, 0.8, 99))
    assert recalibration.levels(torch.tensor(0.5)) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_errors(name: str) -> None:
    dist = _gaussian(0.0, 1.0)
    with pytest.raises(AQFError, match="not fitted"):
        make_recalibration(name)(dist).icdf(torch.tensor(0.5))
    with pytest.raises(LevelError, match="pit"):
        make_recalibration(name).fit(torch.tensor([0.5, 1.5]))
    with pytest.raises(LevelError):
        make_recalibration(name).fit(torch.tensor([0.5, torch.nan]))
    with pytest.raises(ShapeError, match="at least 2"):
        make_recalibration(name).fit(torch.tensor([0.5]))
    with pytest.raises(ShapeError, match="needs the observations"):
        make_recalibration(name).fit(dist)
    with pytest.raises(ShapeError, match="each with each"):
        make_recalibration(name).fit(dist.expand((9,)), torch.zeros(9, 1))
    with pytest.raises(TypeError, match="given together with a recalibration object"):
        make_recalibration(make_recalibration(name), per_column=True)


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="conformal, isotonic, spline"):
        make_recalibration("platt")
    fitted = ConformalRecalibration()
    assert make_recalibration(fitted) is fitted
    with pytest.raises(DomainError, match="prior"):
        SplineRecalibration(prior=0.0)
    with pytest.raises(ShapeError, match="2 knots"):
        IsotonicRecalibration(knots=1)
    with pytest.raises(ShapeError, match="non-empty vector"):
        isotonic_regression(torch.zeros(0))
    with pytest.raises(DomainError, match="positive"):
        isotonic_regression(torch.zeros(2), torch.zeros(2))
