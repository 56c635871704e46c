"""Losses of quantile functions and CDFs: identities, exactness, gradients, hostile numbers."""

from __future__ import annotations

import numpy as np
import pytest
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Laplace, Normal

from aqf_core.errors import DomainError, LevelError, ShapeError, UnknownNameError
from aqf_core.levels import LevelStrategy
from aqf_core.losses import (
    crps_loss,
    gauss_legendre,
    gaussian_crps,
    interpolated_crps,
    interpolation_levels,
    piecewise_linear_crps,
    pinball_loss,
    quantile_loss,
)

X = torch.linspace(-4, 4, 9, dtype=torch.float64)
finite = st.floats(-1e6, 1e6, width=32)


def test_pinball_is_the_check_function() -> None:
    u = torch.tensor([0.0, 0.1, 0.5, 1.0])
    assert torch.allclose(pinball_loss(torch.zeros(4), torch.full((4,), 2.0), u, "none"), 2 * u)
    assert torch.allclose(
        pinball_loss(torch.zeros(4), torch.full((4,), -2.0), u, "none"), 2 * (1 - u)
    )


def test_pinball_is_minimised_by_the_quantile() -> None:
    y = torch.distributions.Exponential(1.0).sample((4001,)).sort().values
    candidates = y[::10]
    losses = pinball_loss(candidates[:, None], y, 0.7, "none").mean(1)
    assert candidates[losses.argmin()] == pytest.approx(float(y.quantile(0.7)), abs=0.02)


@pytest.mark.parametrize("base", [Normal, Laplace])
def test_crps_is_twice_the_quantile_loss(base: type[Normal] | type[Laplace]) -> None:
    dist = base(torch.zeros((), dtype=torch.float64), 1.5)
    by_levels = 2 * quantile_loss(dist.icdf, X, LevelStrategy("fixed", 20_000), "none")
    by_cdf = crps_loss(dist.cdf, X, -40.0, 40.0, nodes=300, reduction="none")
    assert torch.allclose(by_levels, by_cdf, rtol=1e-4)


def test_quantile_loss_is_unbiased_and_seeded() -> None:
    exact = gaussian_crps(torch.zeros(()), torch.ones(()), X, "none") / 2
    many = X.expand(5000, 9)
    for name in ("iid", "stratified", "lattice"):
        loss = quantile_loss(
            torch.special.ndtri,
            many,
            LevelStrategy(name, 4),
            "none",
            generator=torch.Generator().manual_seed(0),
        )
        error = loss.std(0) / 5000**0.5
        assert ((loss.mean(0) - exact).abs() < 4.5 * error + 1e-6).all()


@pytest.mark.parametrize("nodes", [16, 32, 64])
def test_cdf_quadrature_converges(nodes: int) -> None:
    tolerance = {16: 0.05, 32: 0.005, 64: 2e-4}[nodes]
    exact = gaussian_crps(torch.zeros(()), torch.ones(()), X, "none")
    crps = crps_loss(torch.special.ndtr, X, -8.0, 8.0, nodes, "none")
    assert ((crps - exact).abs() / exact).max() < tolerance


def test_cdf_crps_of_a_coin_is_the_brier_score() -> None:
    p = torch.tensor([0.2, 0.9], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def step(t: Tensor) -> Tensor:  # F(t) = 1 - p between the labels 0 and 1
        return (1 - p).unsqueeze(-1).expand_as(t)

    assert torch.allclose(crps_loss(step, y, 0.0, 1.0, 4, "none"), (y - p) ** 2)


def test_cdf_crps_reaches_observations_outside_the_range() -> None:
    x = torch.tensor([-20.0, 25.0], dtype=torch.float64)
    exact = gaussian_crps(torch.zeros(()), torch.ones(()), x, "none")
    crps = crps_loss(torch.special.ndtr, x, -8.0, 8.0, 200, "none")
    assert torch.allclose(crps, exact, rtol=1e-6)


def test_gauss_legendre_is_exact_for_polynomials() -> None:
    t, w = gauss_legendre(6, dtype=torch.float64)
    powers = torch.arange(12, dtype=torch.float64)
    moments = (w * t ** powers.unsqueeze(1)).sum(1)
    assert torch.allclose(moments, 1 / (powers + 1))


# A piecewise-linear quantile function with tails -----------------------------------------------

KNOTS = torch.tensor([0.05, 0.2, 0.5, 0.7, 0.95], dtype=torch.float64)
VALUES = torch.tensor([-2.0, -1.0, 0.5, 0.5, 3.0], dtype=torch.float64)  # an atom at 0.5
LEFT, RIGHT = 0.7, 1.3


def _spline_quantile(u: Tensor) -> Tensor:
    inner = torch.from_numpy(np.interp(u.numpy(), KNOTS.numpy(), VALUES.numpy()))
    left = VALUES[0] + LEFT * (u / KNOTS[0]).log()
    right = VALUES[-1] - RIGHT * ((1 - u) / (1 - KNOTS[-1])).log()
    return torch.where(u < KNOTS[0], left, torch.where(u > KNOTS[-1], right, inner))


def _dense_crps(quantile: Tensor, u: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    loss = pinball_loss(quantile, x.unsqueeze(-1), u, "none")
    return 2 * (loss * weight).sum(-1)


def test_piecewise_linear_crps_against_dense_quadrature() -> None:
    x = torch.cat([torch.linspace(-8, 9, 60, dtype=torch.float64), VALUES])
    s = torch.linspace(-35, 35, 200_001, dtype=torch.float64)
    u = torch.sigmoid(s)
    weight = u * torch.sigmoid(-s) * (s[1] - s[0])
    dense = _dense_crps(_spline_quantile(u), u, x, weight)
    exact = piecewise_linear_crps(KNOTS, VALUES, x, LEFT, RIGHT, "none")
    assert torch.allclose(exact, dense, rtol=1e-6)


def test_piecewise_linear_crps_of_known_distributions() -> None:
    x = torch.tensor([-1.0, 0.0, 0.3, 1.0, 4.0], dtype=torch.float64)
    unit = torch.tensor([0.0, 1.0], dtype=torch.float64)
    uniform = piecewise_linear_crps(unit, unit, x, reduction="none")
    assert np.allclose(uniform, scoringrules.crps_uniform(x.numpy(), 0, 1, 0, 0))
    half = torch.tensor([0.5], dtype=torch.float64)  # one knot and two tails: the Laplace law
    laplace = piecewise_linear_crps(half, 0 * half, x, 1.0, 1.0, "none")
    assert np.allclose(laplace, scoringrules.crps_laplace(x.numpy(), 0, 1))
    point = piecewise_linear_crps(half, half, x, reduction="none")
    assert torch.allclose(point, (x - 0.5).abs())


def test_piecewise_linear_gradients() -> None:
    x = torch.tensor([-5.0, -1.3, 0.2, 1.7, 6.0], dtype=torch.float64)
    levels = KNOTS.expand(5, 5).clone().requires_grad_()
    values = VALUES + torch.tensor([0.0, 0.0, 0.0, 0.3, 0.0], dtype=torch.float64)
    values = values.expand(5, 5).clone().requires_grad_()
    scales = [torch.full((5,), b, dtype=torch.float64, requires_grad=True) for b in (LEFT, RIGHT)]
    assert torch.autograd.gradcheck(
        lambda *a: piecewise_linear_crps(*a, reduction="none"),
        (levels, values, x.requires_grad_(), *scales),
    )


@given(
    st.lists(finite, min_size=2, max_size=8),
    finite,
    st.floats(0, 1e6, width=32),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e6]),
)
@settings(max_examples=100, deadline=None)
def test_piecewise_linear_never_nan(
    values: list[float], observation: float, tail: float, factor: float
) -> None:
    q = (torch.tensor(sorted(values)) * factor).requires_grad_()
    x = torch.tensor(observation, requires_grad=True)
    scale = torch.tensor(tail * factor).requires_grad_()
    u = (torch.arange(len(values)) + 0.5) / len(values)
    crps = piecewise_linear_crps(u, q, x, scale, scale)
    crps.backward()
    assert torch.isfinite(crps) and crps >= -1e-4 * (1 + crps.abs())
    for leaf in (q, x, scale):
        assert leaf.grad is not None and torch.isfinite(leaf.grad).all()


def test_interpolated_crps_on_t_and_identical_quantiles() -> None:
    from scipy import stats

    u = interpolation_levels(256, dtype=torch.float64)
    q = torch.from_numpy(stats.t(2.5).ppf(u.numpy()))
    crps = interpolated_crps(u, q.expand(9, 256), X)
    assert np.allclose(crps, scoringrules.crps_t(X.numpy(), 2.5), rtol=1e-4)
    constant = interpolated_crps(u, torch.full((9, 256), 2.0, dtype=torch.float64), X)
    assert torch.allclose(constant, (X - 2).abs(), atol=1e-12)


def test_reductions_and_errors() -> None:
    x = torch.randn(3, 4)
    none = pinball_loss(torch.zeros(4), x, 0.3, "none")
    assert none.shape == (3, 4)
    assert torch.allclose(pinball_loss(torch.zeros(4), x, 0.3), none.mean())
    assert torch.allclose(pinball_loss(torch.zeros(4), x, 0.3, "sum"), none.sum())
    with pytest.raises(UnknownNameError):
        pinball_loss(x, x, 0.5, "average")
    with pytest.raises(LevelError):
        pinball_loss(x, x, 50.0)
    with pytest.raises(LevelError):
        pinball_loss(x, x, torch.tensor(-0.1))
    with pytest.raises(DomainError, match="finite range"):
        crps_loss(torch.special.ndtr, x, -float("inf"), 1.0)
    with pytest.raises(ShapeError, match="same last dimension"):
        piecewise_linear_crps(torch.rand(3), torch.rand(4), torch.zeros(()))
    for bad in ([0.5], [0.5, 0.4], [0.0, 0.5], [0.5, 1.5]):
        with pytest.raises(LevelError):
            interpolated_crps(torch.tensor(bad), torch.zeros(len(bad)), torch.zeros(()))


def test_compile_and_vmap_of_grad() -> None:
    def loss(x: Tensor) -> Tensor:
        direct = quantile_loss(torch.special.ndtri, x, LevelStrategy("fixed", 4))
        return direct + crps_loss(torch.special.ndtr, x, -8.0, 8.0)

    x = torch.randn(5)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), loss(x))
    gradient = torch.func.vmap(torch.func.grad(loss))(x)
    y = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(y) * 5, y)
    assert torch.allclose(gradient, expected, atol=1e-6)
