"""Mixtures: exact probabilities, quantiles by inversion, implicit gradients."""

from __future__ import annotations

import numpy as np
import pytest
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch.distributions import Categorical, Laplace, MixtureSameFamily, Normal

from aqf_core import inversion
from aqf_core.distributions import GaussianPredictive, ScalarPredictive
from aqf_core.errors import DomainError, ShapeError
from aqf_core.interpolation import InterpolatedPredictive
from aqf_core.mixtures import MixturePredictive
from aqf_core.normal import log_base_to_level
from aqf_core.quantile_function import QuantileDistribution
from aqf_core.transformers import make_transformer

LOC = torch.tensor([[-3.0, 0.0], [0.0, 0.1], [4.0, 0.2]], dtype=torch.float64)
SCALE = torch.tensor([[0.2, 1.0], [1.0, 1.0], [2.0, 5.0]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)


def _gaussians() -> MixturePredictive:
    return MixturePredictive(GaussianPredictive(LOC, SCALE), WEIGHTS)


def _reference() -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(WEIGHTS.expand(2, 3)), Normal(LOC.T, SCALE.T))


def _different() -> MixturePredictive:
    u = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    table = InterpolatedPredictive(u, torch.tensor([[-1.0, 0.0, 2.0]], dtype=torch.float64))
    spline = make_transformer("spline")
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(2, spline.n_params, generator=generator, dtype=torch.float64)
    return MixturePredictive(
        [
            Normal(LOC[0], SCALE[0]),
            Laplace(LOC[1], SCALE[1]),
            table,
            QuantileDistribution(spline, h),
        ]
    )


def test_cdf_density_and_moments_match_torch() -> None:
    mixture, reference = _gaussians(), _reference()
    x = torch.linspace(-6, 8, 30, dtype=torch.float64).unsqueeze(1).expand(30, 2)
    assert torch.allclose(mixture.cdf(x), reference.cdf(x))
    assert torch.allclose(mixture.log_prob(x), reference.log_prob(x))
    assert torch.allclose(mixture.mean, reference.mean)
    assert torch.allclose(mixture.variance, reference.variance)
    within, between = mixture.variance_parts()
    assert torch.allclose(within, (WEIGHTS @ SCALE.square()))
    assert torch.allclose(within + between, ScalarPredictive.variance.fget(mixture), rtol=5e-3)


@pytest.mark.parametrize("make", [_gaussians, _different])
def test_quantile_inverts_the_cdf(make: object) -> None:
    mixture = make()  # type: ignore[operator]
    u = torch.tensor([1e-6, 1e-3, 0.1, 0.3, 0.5, 0.9, 0.999, 1 - 1e-6], dtype=torch.float64)
    q = mixture.quantiles(u)
    assert q.shape == (2, 8) and (q.diff(dim=-1) > 0).all()
    assert torch.allclose(mixture.cdf(q.T), u.unsqueeze(1).expand(8, 2), rtol=1e-8, atol=1e-12)
    x = mixture.sample((50,))
    assert torch.allclose(mixture.icdf(mixture.cdf(x)), x, atol=1e-6)
    z = mixture.to_base(x)
    assert torch.allclose(mixture.from_base(z), x, atol=1e-8)


def test_tails_keep_their_precision_in_float32() -> None:
    mixture = MixturePredictive(GaussianPredictive(torch.tensor([[0.0], [1.0]]), torch.ones(2, 1)))
    z = torch.linspace(-12, 12, 49).unsqueeze(1)
    x = mixture.from_base(z)
    assert torch.isfinite(x).all() and (x.diff(dim=0) > 0).all()
    assert torch.allclose(mixture.to_base(x), z, atol=1e-4)
    ends = mixture.icdf(torch.tensor([[0.0], [1.0]]))
    assert torch.isfinite(ends).all()


def test_log_phi_is_exact_at_any_distance() -> None:
    far = -torch.logspace(-2, 7, 200, dtype=torch.float64)
    z = torch.cat([far, torch.tensor([-20.0, -19.99, 0.0, 3.0, 7.0], dtype=torch.float64)])
    value = log_base_to_level(z.requires_grad_())
    assert np.allclose(value.detach(), stats.norm.logcdf(z.detach()), rtol=1e-10)
    (slope,) = torch.autograd.grad(value.sum(), z)
    exact = np.sqrt(2 / np.pi) / special.erfcx(-z.detach().numpy() / np.sqrt(2))
    assert np.allclose(slope, exact, rtol=1e-8)


def test_one_component_is_itself() -> None:
    single = GaussianPredictive(LOC[:1], SCALE[:1])
    mixture = MixturePredictive(single)
    u = torch.linspace(0.01, 0.99, 9, dtype=torch.float64)
    expected = single.quantiles(u)[0]
    assert torch.allclose(mixture.quantiles(u), expected, atol=1e-9)


def test_crps_closed_form_and_by_quantiles() -> None:
    mixture = _gaussians()
    x = torch.linspace(-5, 6, 12, dtype=torch.float64).unsqueeze(1).expand(12, 2)
    exact = mixture.crps(x)
    theirs = scoringrules.crps_mixnorm(x.numpy(), LOC.T.numpy(), SCALE.T.numpy(), WEIGHTS.numpy())
    assert np.allclose(exact, theirs)
    stacked = MixturePredictive([Normal(m, s) for m, s in zip(LOC, SCALE, strict=True)], WEIGHTS)
    assert torch.allclose(stacked.crps(x), exact)
    by_quantiles = MixturePredictive([Laplace(LOC[0], SCALE[0]), Laplace(LOC[0], SCALE[0])]).crps(x)
    error = (x - LOC[0]).abs()
    laplace = error + SCALE[0] * torch.exp(-error / SCALE[0]) - 0.75 * SCALE[0]
    assert torch.allclose(by_quantiles, laplace, rtol=1e-4)


def test_implicit_gradients_against_finite_differences() -> None:
    u = torch.tensor([[0.05], [0.5], [0.93]], dtype=torch.float64)

    def quantile(loc: torch.Tensor, scale: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return MixturePredictive(GaussianPredictive(loc, scale), weights).icdf(u)

    leaves = [t.clone().requires_grad_() for t in (LOC, SCALE, WEIGHTS)]
    assert torch.autograd.gradcheck(quantile, leaves)


def test_samples_follow_the_mixture() -> None:
    torch.manual_seed(0)
    for mixture in (_gaussians(), _different()):
        for x in (mixture.sample((20_000,)), mixture.rsample((2_000,))):
            u = mixture.cdf(x).sort(0).values
            n = len(u)
            grid = ((torch.arange(n, dtype=torch.float64) + 0.5) / n).unsqueeze(1)
            assert (u - grid).abs().max() < 2.0 / n**0.5  # Kolmogorov distance


def test_weights_per_element_and_zero_weights() -> None:
    weights = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    mixture = MixturePredictive(GaussianPredictive(LOC, SCALE), weights.requires_grad_())
    q = mixture.icdf(torch.tensor(0.3, dtype=torch.float64))
    expected = torch.stack([LOC[0, 0] - 0.5244 * SCALE[0, 0], LOC[1, 1] - 0.5244 * SCALE[1, 1]])
    assert torch.allclose(q, expected, atol=1e-4)
    q.sum().backward()
    assert weights.grad is not None and torch.isfinite(weights.grad).all()


def test_shapes_and_expand() -> None:
    mixture = MixturePredictive(GaussianPredictive(torch.zeros(4, 3, 2), torch.ones(2)))
    assert mixture.batch_shape == (3, 2)
    assert mixture.sample((5,)).shape == (5, 3, 2)
    assert mixture.icdf(torch.rand(7, 1, 1)).shape == (7, 3, 2)
    assert mixture.log_prob(torch.zeros(2)).shape == (3, 2)
    wide = mixture.expand((6, 3, 2))
    assert wide.rsample((2,)).shape == (2, 6, 3, 2)
    assert wide.mean.shape == wide.variance.shape == (6, 3, 2)
    scalar = MixturePredictive([Normal(0.0, 1.0), Laplace(1.0, 1.0)])
    assert scalar.batch_shape == () and scalar.icdf(torch.rand(5)).shape == (5,)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=5),
    st.floats(0.0009765625, 1024, width=32),
    st.floats(0, 1, width=32),
)
@settings(max_examples=60, deadline=None)
def test_quantiles_are_always_found(locs: list[float], scale: float, u: float) -> None:
    loc = torch.tensor(locs, requires_grad=True)
    mixture = MixturePredictive(GaussianPredictive(loc, torch.full((len(locs),), scale)))
    q = mixture.icdf(torch.tensor(u))
    q.backward()
    assert torch.isfinite(q) and loc.grad is not None and torch.isfinite(loc.grad).all()
    low = min(locs) - 14 * scale
    assert (
        low - 1e-3 * abs(low) <= float(q.detach()) <= max(locs) + 14 * scale + 1e-3 * abs(max(locs))
    )


@pytest.mark.slow
def test_quantiles_export(monkeypatch: pytest.MonkeyPatch) -> None:
    # The traced steps of the root finder are all alike: the fewer, the smaller the graph.
    steps = dict.fromkeys(inversion.TRACED_ITERATIONS, 12)
    monkeypatch.setattr(inversion, "TRACED_ITERATIONS", steps)

    class Quantile(torch.nn.Module):
        def forward(self, loc: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            return MixturePredictive(GaussianPredictive(loc, torch.ones(()))).icdf(u)

    inputs = (LOC.float(), torch.tensor(0.3))
    exported = torch.export.export(Quantile(), inputs).module()
    assert torch.allclose(exported(*inputs), Quantile()(*inputs), atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_of_grad() -> None:
    def quantile(loc: torch.Tensor) -> torch.Tensor:
        return MixturePredictive(GaussianPredictive(loc, SCALE[:, 0])).icdf(torch.tensor(0.4))

    gradients = torch.func.vmap(torch.func.grad(quantile))(LOC.T.contiguous())
    leaf = LOC[:, 0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(quantile(leaf), leaf)
    assert torch.allclose(gradients[0], expected, atol=1e-6)


def test_errors() -> None:
    with pytest.raises(ShapeError, match="empty list"):
        MixturePredictive([])
    with pytest.raises(ShapeError, match="at least one component"):
        MixturePredictive(GaussianPredictive(torch.zeros(()), torch.ones(())))
    with pytest.raises(TypeError, match="a list of distributions"):
        MixturePredictive(Normal(0.0, 1.0))  # type: ignore[arg-type]
    two = GaussianPredictive(torch.zeros(2), torch.ones(2))
    with pytest.raises(ShapeError, match="2 components"):
        MixturePredictive(two, torch.ones(3))
    with pytest.raises(DomainError, match="non-negative"):
        MixturePredictive(two, torch.tensor([1.5, -0.5]))


@pytest.mark.parametrize("make", [_gaussians, _different])
@pytest.mark.parametrize("count", [1, 9, 199])
@pytest.mark.parametrize("tail", [False, True])
def test_many_levels_at_once_agree_with_single_ones(make, count, tail) -> None:
    mixture = make()
    edge = 1e-9 if tail else 2e-3
    levels = torch.linspace(edge, 1 - edge, count, dtype=torch.float64)
    with torch.no_grad():
        many = mixture.quantiles(levels)
        single = mixture.icdf(levels.reshape(-1, 1).expand(count, 2)).T
        assert many.shape == (2, count)
        assert torch.allclose(mixture.cdf(many.T).T, levels.expand(2, count), rtol=1e-7, atol=0)
        assert torch.allclose(many, single, rtol=1e-4, atol=1e-6)


def test_quantiles_at_many_levels_have_gradients() -> None:
    loc = LOC.clone().requires_grad_()
    mixture = MixturePredictive(GaussianPredictive(loc, SCALE), WEIGHTS)
    mixture.quantiles(torch.tensor([0.1, 0.9], dtype=torch.float64)).sum().backward()
    # Shifting every component shifts every quantile.
    assert torch.allclose(loc.grad.sum(0), torch.full((2,), 2.0, dtype=torch.float64))
