"""The scalar predictive interface: derived quantities against known distributions."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.distributions import (
    Categorical,
    Cauchy,
    Distribution,
    Gamma,
    Independent,
    Laplace,
    MixtureSameFamily,
    Normal,
    StudentT,
)

from aqf_core import (
    GaussianPredictive,
    ScalarPredictive,
    WrappedPredictive,
    as_predictive,
)
from aqf_core.errors import DomainError, LevelError, NonFiniteError, ShapeError


class Derived(WrappedPredictive):
    """A wrapper that forgets closed forms, so that the derived quantities are tested."""

    mean = ScalarPredictive.mean
    variance = ScalarPredictive.variance


LOC = torch.tensor([[-3.0], [0.0], [1e3]], dtype=torch.float64)
SCALE = torch.tensor([0.1, 7.0], dtype=torch.float64)
KNOWN = [Normal(LOC, SCALE), Laplace(LOC, SCALE)]


@pytest.mark.parametrize("base", KNOWN, ids=lambda d: type(d).__name__)
def test_moments_entropy_and_crps_by_quadrature(base: Distribution) -> None:
    dist = Derived(base)
    assert torch.allclose(dist.mean, base.mean, atol=1e-8)
    assert torch.allclose(dist.variance, base.variance, rtol=1e-3)
    assert torch.allclose(dist.stddev, base.stddev, rtol=1e-3)
    assert torch.allclose(dist.entropy(), base.entropy(), atol=1e-3)
    assert torch.equal(dist.median, base.icdf(torch.full((3, 2), 0.5, dtype=torch.float64)))
    x = base.sample((20,))
    error = (x - LOC).abs()
    exact = error + SCALE * torch.exp(-error / SCALE) - 0.75 * SCALE  # of the Laplace distribution
    if isinstance(base, Normal):
        exact = GaussianPredictive(LOC, SCALE).crps(x)
    assert torch.allclose(dist.crps(x), exact, rtol=1e-4)


def test_gaussian_closed_forms_agree_with_torch() -> None:
    base = Normal(LOC, SCALE)
    dist = as_predictive(base)
    x = base.sample((5,))
    assert isinstance(dist, GaussianPredictive)
    assert torch.allclose(dist.log_prob(x), base.log_prob(x))
    assert torch.allclose(dist.cdf(x), base.cdf(x))
    u = torch.rand(5, 3, 2, dtype=torch.float64)
    assert torch.allclose(dist.icdf(u), base.icdf(u))
    assert torch.equal(dist.mean, base.mean) and torch.equal(dist.stddev, base.stddev)


def test_crps_error_falls_quadratically() -> None:
    dist = Derived(Normal(torch.zeros(5, dtype=torch.float64), 1.0))
    x = torch.linspace(-3, 3, 5, dtype=torch.float64)
    exact = as_predictive(Normal(0.0, torch.ones((), dtype=torch.float64))).crps(x)
    errors = [float((dist.crps(x, levels=n) / exact - 1).abs().max()) for n in (32, 64, 128, 256)]
    assert errors[0] < 2e-3 and errors[3] < 3e-5
    assert all(b < a / 3 for a, b in zip(errors, errors[1:], strict=False))
    with pytest.raises(LevelError, match="at least 32"):
        dist.crps(x, levels=8)


def test_shapes_follow_torch_distributions() -> None:
    dist = as_predictive(Normal(torch.zeros(4, 1), torch.ones(3)))
    assert dist.batch_shape == (4, 3) and dist.event_shape == ()
    assert dist.sample().shape == (4, 3)
    assert dist.rsample((2, 5)).shape == (2, 5, 4, 3)
    assert dist.sample(torch.Size([0])).shape == (0, 4, 3)
    assert dist.icdf(torch.tensor(0.5)).shape == (4, 3)
    assert dist.quantile(torch.rand(7, 4, 3)).shape == (7, 4, 3)
    assert dist.quantiles(torch.tensor([0.1, 0.5])).shape == (4, 3, 2)
    assert dist.cdf(torch.zeros(3)).shape == (4, 3)
    assert dist.log_prob(torch.zeros(6, 1, 3)).shape == (6, 4, 3)
    assert dist.crps(torch.zeros(4, 1)).shape == (4, 3)
    low, high = dist.interval(torch.tensor([0.5, 0.8, 0.9]))
    assert low.shape == high.shape == (4, 3)
    assert as_predictive(Normal(0.0, 1.0)).quantiles(torch.tensor([0.1])).shape == (1,)


def test_quantiles_put_levels_last() -> None:
    base = Normal(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 2.0]))
    u = torch.tensor([0.1, 0.5, 0.9])
    q = as_predictive(base).quantiles(u)
    assert torch.allclose(q, base.icdf(u.unsqueeze(-1)).T)


def test_interval_and_probabilities() -> None:
    dist = as_predictive(Normal(torch.zeros(2), torch.tensor([1.0, 2.0])))
    low, high = dist.interval(0.8)
    assert torch.allclose(dist.prob_between(low, high), torch.tensor(0.8), atol=1e-6)
    assert torch.allclose(dist.prob_below(low), torch.tensor(0.1), atol=1e-6)
    assert torch.allclose(dist.prob_above(high), torch.tensor(0.1), atol=1e-6)
    assert torch.equal(dist.prob_between(high, low), torch.zeros(2))
    with pytest.raises(LevelError, match="coverage"):
        dist.interval(80)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_at_the_ends_are_finite(dtype: torch.dtype) -> None:
    loc = torch.zeros(2, dtype=dtype, requires_grad=True)
    dist = Derived(Normal(loc, torch.ones(2, dtype=dtype)))
    q = dist.icdf(torch.tensor([0.0, 1.0], dtype=dtype))
    q.sum().backward()
    assert torch.isfinite(q).all() and loc.grad is not None and torch.isfinite(loc.grad).all()
    assert torch.isfinite(Derived(Cauchy(loc, torch.ones(2, dtype=dtype))).mean).all()


def test_samples_follow_the_distribution_and_carry_gradients() -> None:
    torch.manual_seed(0)
    loc = torch.tensor([1.0, -1.0], requires_grad=True)
    dist = Derived(Laplace(loc, torch.tensor([1.0, 3.0])))
    x = dist.rsample((20_000,))
    u = dist.cdf(x).detach().sort(0).values
    grid = ((torch.arange(20_000) + 0.5) / 20_000).unsqueeze(1)
    assert (u - grid).abs().max() < 0.015  # Kolmogorov distance
    x.mean(0).sum().backward()
    assert loc.grad is not None and torch.allclose(loc.grad, torch.ones(2))
    assert not dist.sample().requires_grad


def test_expand_changes_only_the_shape() -> None:
    dist = Derived(Normal(torch.tensor([[0.0], [5.0]]), torch.ones(1)))
    wide = dist.expand((3, 2, 4))
    assert wide.batch_shape == (3, 2, 4) and dist.batch_shape == (2, 1)
    assert wide.sample((6,)).shape == (6, 3, 2, 4)
    assert wide.mean.shape == wide.variance.shape == wide.entropy().shape == (3, 2, 4)
    assert torch.allclose(wide.mean[1], torch.tensor([[0.0], [5.0]]).expand(2, 4), atol=1e-5)
    assert wide.icdf(torch.tensor(0.3)).shape == (3, 2, 4)
    assert torch.allclose(wide.crps(torch.zeros(())), dist.crps(torch.zeros(())).expand(3, 2, 4))
    with pytest.raises(ShapeError, match="does not expand"):
        dist.expand((3, 4))


def test_bad_values() -> None:
    dist = as_predictive(Normal(torch.zeros(3), 1.0))
    with pytest.raises(NonFiniteError):
        dist.cdf(torch.tensor([0.0, torch.nan, 0.0]))
    with pytest.raises(LevelError):
        dist.icdf(torch.tensor([0.5, 1.5, 0.5]))
    with pytest.raises(ShapeError, match="broadcast"):
        dist.log_prob(torch.zeros(2))
    with pytest.raises(ShapeError, match=r"\(K,\)"):
        dist.quantiles(torch.rand(2, 2))
    with pytest.raises(ShapeError, match="one-dimensional"):
        as_predictive(Independent(Normal(torch.zeros(3), 1.0), 1))
    with pytest.raises(TypeError, match="Distribution is needed, got int"):
        as_predictive(3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="no cdf of StudentT"):
        as_predictive(StudentT(torch.tensor(3.0))).cdf(torch.tensor(0.0))
    with pytest.raises(DomainError, match="must not be negative"):
        GaussianPredictive(torch.zeros(2), torch.tensor([1.0, -1.0]))
    trusting = WrappedPredictive(
        Normal(torch.zeros(1), 1.0, validate_args=False), validate_args=False
    )
    assert torch.isnan(trusting.cdf(torch.tensor([torch.nan]))).all()


def test_as_predictive_keeps_predictives_and_copies_survive() -> None:
    dist = as_predictive(Normal(torch.zeros(3), 1.0))
    assert as_predictive(dist) is dist
    for clone in (copy.deepcopy(dist), pickle.loads(pickle.dumps(dist))):
        assert torch.equal(clone.icdf(torch.tensor(0.3)), dist.icdf(torch.tensor(0.3)))
    assert repr(dist) == "GaussianPredictive(batch_shape=(3,))"
    assert "Laplace" in repr(as_predictive(Laplace(0.0, 1.0)))


@pytest.mark.parametrize(
    "base",
    [
        Gamma(torch.tensor([0.5, 3.0]).double(), 2.0),
        MixtureSameFamily(
            Categorical(torch.ones(2, 2).double()),
            Normal(torch.tensor([-3.0, 4.0]).double().expand(2, 2), 1.0),
        ),
    ],
    ids=["gamma", "mixture"],
)
def test_missing_quantile_functions_are_found(base: Distribution) -> None:
    dist = as_predictive(base)
    u = torch.tensor([[1e-6], [0.01], [0.4], [0.99], [1 - 1e-6]]).double()
    torch.testing.assert_close(dist.cdf(dist.icdf(u)), u.expand(5, 2), rtol=1e-6, atol=1e-9)
    assert torch.isfinite(dist.icdf(torch.tensor([[0.0], [1.0]]))).all()
    torch.testing.assert_close(ScalarPredictive.mean.fget(dist), base.mean, rtol=1e-3, atol=1e-3)
    assert (dist.crps(base.sample()) > 0).all()


def test_vmap_and_compile() -> None:
    def tail(loc: torch.Tensor) -> torch.Tensor:
        return Derived(Normal(loc, torch.ones(()), validate_args=False)).icdf(torch.tensor(0.9))

    x = torch.arange(3.0)
    assert torch.allclose(torch.func.vmap(tail, randomness="different")(x), x + 1.2816, atol=1e-4)


def test_discrete_distributions_are_not_wrapped() -> None:
    with pytest.raises(TypeError, match="Poisson is discrete"):
        as_predictive(torch.distributions.Poisson(torch.ones(2)))
