"""The distribution through a table of quantiles."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from aqf_core.errors import DomainError, LevelError, NonFiniteError, ShapeError
from aqf_core.interpolation import InterpolatedPredictive
from aqf_core.losses import pinball_loss

LEVELS = torch.tensor([0.1, 0.3, 0.5, 0.8, 0.9], dtype=torch.float64)
VALUES = torch.tensor(
    [[-3.0, -1.0, 0.0, 2.0, 2.5], [10.0, 10.5, 12.0, 30.0, 31.0]], dtype=torch.float64
)


def _dist() -> InterpolatedPredictive:
    return InterpolatedPredictive(LEVELS, VALUES)


def test_passes_through_the_knots() -> None:
    assert torch.allclose(_dist().quantiles(LEVELS), VALUES)
    assert torch.allclose(_dist().cdf(VALUES.T), LEVELS.unsqueeze(1).expand(5, 2))


def test_inverse_density_and_score_are_consistent() -> None:
    dist = _dist()
    u = torch.cat([torch.tensor([1e-6, 1 - 1e-6]), torch.linspace(0.001, 0.999, 501)]).double()
    q = dist.quantiles(u).T
    assert torch.allclose(dist.cdf(q), u.unsqueeze(1).expand_as(q), atol=1e-12)
    assert (q[2:].diff(dim=0) > 0).all()
    x = q.clone().requires_grad_()
    (density,) = torch.autograd.grad(dist.cdf(x).sum(), x)
    off_knots = (q.unsqueeze(-1) - VALUES).abs().amin(-1) > 1e-6
    assert torch.allclose(dist.log_prob(q)[off_knots], density.log()[off_knots])
    levels = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for y in (-8.0, 0.3, 2.5, 40.0):
        loss = pinball_loss(dist.quantiles(levels), torch.tensor(y), levels, "none")
        assert torch.allclose(dist.crps(torch.tensor(y)), 2 * loss.mean(-1), rtol=1e-4)


def test_density_integrates_to_one() -> None:
    x = torch.linspace(-60, 120, 400_001, dtype=torch.float64)
    density = _dist().log_prob(x.unsqueeze(1)).exp()
    assert torch.allclose(
        torch.trapezoid(density, x, dim=0), torch.ones(2, dtype=torch.float64), atol=1e-3
    )


def test_recovers_a_gaussian_from_its_percentiles() -> None:
    u = torch.arange(1, 100, dtype=torch.float64) / 100
    normal = Normal(torch.zeros((), dtype=torch.float64), 1.0)
    dist = InterpolatedPredictive(u, normal.icdf(u))
    assert dist.batch_shape == ()
    assert dist.mean == pytest.approx(0, abs=1e-9)
    assert dist.stddev == pytest.approx(1, rel=0.01)
    x = torch.linspace(-3, 3, 31, dtype=torch.float64)
    assert torch.allclose(dist.cdf(x), normal.cdf(x), atol=2e-3)
    assert torch.allclose(dist.log_prob(x), normal.log_prob(x), atol=0.2)


def test_atoms() -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0], dtype=torch.float64)
    dist = InterpolatedPredictive(LEVELS, values)
    assert dist.cdf(torch.tensor(1.0, dtype=torch.float64)) == pytest.approx(0.8)
    assert dist.icdf(torch.tensor(0.6, dtype=torch.float64)) == 1
    point = InterpolatedPredictive(LEVELS, torch.full((5,), 3.0, dtype=torch.float64))
    x = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
    assert torch.allclose(point.cdf(x), torch.tensor([0.0, 0.9, 1.0], dtype=torch.float64))
    assert torch.allclose(point.crps(x), (x - 3).abs())
    assert torch.isfinite(point.icdf(torch.tensor([0.0, 1.0], dtype=torch.float64))).all()


def test_gradients_reach_the_table() -> None:
    values = VALUES.clone().requires_grad_()
    u = torch.tensor([0.05, 0.42, 0.97], dtype=torch.float64)
    x = torch.tensor([[-4.0], [0.7], [40.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda v: InterpolatedPredictive(LEVELS, v).quantiles(u), (values,)
    )
    for method in ("cdf", "log_prob", "crps"):
        assert torch.autograd.gradcheck(
            lambda v, name=method: getattr(InterpolatedPredictive(LEVELS, v), name)(x), (values,)
        )


def test_errors() -> None:
    with pytest.raises(ShapeError, match="share K"):
        InterpolatedPredictive(LEVELS, VALUES[:, :3])
    with pytest.raises(LevelError, match="two levels"):
        InterpolatedPredictive(LEVELS[:1], VALUES[:, :1])
    with pytest.raises(LevelError, match="increase"):
        InterpolatedPredictive(LEVELS.flip(0), VALUES)
    with pytest.raises(LevelError, match="inside"):
        InterpolatedPredictive(torch.linspace(0, 1, 5), VALUES)
    with pytest.raises(DomainError, match="sort them"):
        InterpolatedPredictive(LEVELS, VALUES.flip(1))
    with pytest.raises(NonFiniteError):
        InterpolatedPredictive(LEVELS, VALUES * torch.nan)
