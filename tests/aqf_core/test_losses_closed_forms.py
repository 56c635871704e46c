"""Parametric and sample-based scores against `scoringrules`, quadrature and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from aqf_core.errors import DomainError, ShapeError
from aqf_core.losses import (
    crps_loss,
    energy_score,
    gaussian_crps,
    gaussian_kl_loss,
    gaussian_mixture_crps,
    gaussian_nll,
    logistic_crps,
    sample_crps,
)

X = torch.linspace(-6, 7, 14, dtype=torch.float64)
LOC = torch.tensor([-1.0, 0.5, 3.0], dtype=torch.float64)
SCALE = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
finite = st.floats(-1e6, 1e6, width=32)


def test_gaussian_and_logistic_crps_against_scoringrules() -> None:
    x, loc, scale = X[:, None].numpy(), LOC.numpy(), SCALE.numpy()
    gaussian = gaussian_crps(LOC, SCALE, X[:, None], "none")
    assert np.allclose(gaussian, scoringrules.crps_normal(x, loc, scale))
    logistic = logistic_crps(LOC, SCALE, X[:, None], "none")
    assert np.allclose(logistic, scoringrules.crps_logistic(x, loc, scale))


def test_mixture_crps_against_scoringrules_and_quadrature() -> None:
    crps = gaussian_mixture_crps(WEIGHTS, LOC, SCALE, X, "none")
    theirs = scoringrules.crps_mixnorm(X.numpy(), LOC.numpy(), SCALE.numpy(), WEIGHTS.numpy())
    assert np.allclose(crps, theirs)
    dense = crps_loss(
        lambda t: (WEIGHTS * torch.special.ndtr((t.unsqueeze(-1) - LOC) / SCALE)).sum(-1),
        X,
        -25.0,
        30.0,
        nodes=400,
        reduction="none",
    )
    assert torch.allclose(crps, dense, rtol=1e-6)
    one = gaussian_mixture_crps(torch.ones(1), LOC[:1], SCALE[:1], X, "none")
    assert torch.allclose(one, gaussian_crps(LOC[0], SCALE[0], X, "none"))


def test_zero_spread_is_the_absolute_error() -> None:
    zero = torch.zeros((), dtype=torch.float64)
    for crps in (gaussian_crps, logistic_crps):
        assert torch.allclose(crps(zero, zero, X, "none"), X.abs())


def test_gradients_of_closed_forms() -> None:
    x = X[:, None].clone().requires_grad_()
    loc, scale = LOC.clone().requires_grad_(), SCALE.clone().requires_grad_()
    for loss in (gaussian_crps, logistic_crps, gaussian_nll):
        assert gradcheck(lambda *a, f=loss: f(*a, "none"), (loc, scale, x))
    mixture_x = X.clone().requires_grad_()
    assert gradcheck(
        lambda m, s, x: gaussian_mixture_crps(WEIGHTS, m, s, x, "none"), (loc, scale, mixture_x)
    )


@pytest.mark.parametrize("loss", [gaussian_crps, logistic_crps])
@given(finite, st.floats(0, 1e6, width=32), finite, st.sampled_from([1e-30, 1.0, 1e6]))
@settings(max_examples=60, deadline=None)
def test_closed_forms_never_nan(
    loss: Callable[..., Tensor], loc: float, scale: float, x: float, factor: float
) -> None:
    leaves = [torch.tensor(v).requires_grad_() for v in (loc, scale * factor, x)]
    value = loss(*leaves)
    value.backward()
    assert torch.isfinite(value) and value >= -1e-5 * scale * factor
    assert all(leaf.grad is not None and torch.isfinite(leaf.grad) for leaf in leaves)


def test_identical_mixture_components_have_finite_gradients() -> None:
    loc = torch.zeros(3, requires_grad=True)
    scale = torch.zeros(3, requires_grad=True)
    gaussian_mixture_crps(torch.full((3,), 1 / 3), loc, scale, torch.tensor(1.0)).backward()
    for leaf in (loc, scale):
        assert leaf.grad is not None and torch.isfinite(leaf.grad).all()
    with pytest.raises(DomainError, match="sum to 1"):
        gaussian_mixture_crps(torch.ones(3), loc, scale, torch.tensor(1.0))


def test_nll_matches_torch() -> None:
    expected = -torch.distributions.Normal(LOC, SCALE).log_prob(X[:, None])
    assert torch.allclose(gaussian_nll(LOC, SCALE, X[:, None], "none"), expected)


def test_kl_loss_has_the_published_form() -> None:
    a = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    x = X[:, None]
    error = (x - LOC).abs()
    published = torch.where(
        error > 1,
        torch.exp(-a) * (error - 0.5) + a / 2,
        torch.exp(-a) / 2 * error**2 + a / 2,
    )
    assert torch.allclose(gaussian_kl_loss(LOC, a, x, reduction="none"), published)
    pure = gaussian_kl_loss(LOC, a, x, smooth_l1=False, reduction="none")
    nll = gaussian_nll(LOC, (a / 2).exp(), x, "none")
    assert torch.allclose(pure, nll - 0.5 * math.log(2 * math.pi))
    leaves = (LOC.clone().requires_grad_(), a.clone().requires_grad_())
    for smooth in (True, False):
        assert gradcheck(lambda m, a, s=smooth: gaussian_kl_loss(m, a, x + 0.01, s, "none"), leaves)


def test_only_the_well_specified_kl_loss_finds_the_spread() -> None:
    torch.manual_seed(0)
    x = 10 * torch.randn(100_000, dtype=torch.float64)  # Gaussian errors of ten pixels
    a = torch.linspace(0, 6, 601, dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    # The loss is linear in exp(-a), so the mean penalty at a = 0 gives it for every a.
    sigma = {}
    for smooth in (True, False):
        penalty = gaussian_kl_loss(zero, zero, x, smooth)
        sigma[smooth] = float((a[(torch.exp(-a) * penalty + a / 2).argmin()] / 2).exp())
    assert sigma[False] == pytest.approx(10, rel=0.02)
    assert sigma[True] < 5


def test_kl_loss_survives_overflowing_errors() -> None:
    loc = torch.zeros((), requires_grad=True)
    loss = gaussian_kl_loss(loc, torch.zeros(()), torch.tensor(1e30))
    loss.backward()
    assert torch.isfinite(loss) and loc.grad is not None and torch.isfinite(loc.grad)


@pytest.mark.parametrize("fair", [True, False])
def test_sample_scores_against_scoringrules(fair: bool) -> None:
    torch.manual_seed(0)
    samples, x = torch.randn(11, 5, 3).double(), torch.randn(5, 3).double()
    crps = sample_crps(samples, x, fair, "none")
    estimator = "fair" if fair else "nrg"
    ensemble = samples.movedim(0, -1).numpy()
    theirs = scoringrules.crps_ensemble(x.numpy(), ensemble, estimator=estimator)
    assert np.allclose(crps, theirs)
    energy = energy_score(samples, x, fair, "none")
    theirs = scoringrules.es_ensemble(x.numpy(), samples.movedim(0, 1).numpy(), estimator=estimator)
    assert np.allclose(energy, theirs)
    flat = energy_score(samples[..., :1], x[..., :1], fair, "none")
    assert torch.allclose(flat, crps[..., 0])


def test_the_fair_estimators_do_not_depend_on_the_ensemble_size() -> None:
    torch.manual_seed(0)
    x = torch.zeros(20_000)
    exact = gaussian_crps(torch.zeros(()), torch.ones(()), torch.zeros(()))
    for m in (2, 5):
        samples = torch.randn(m, 20_000)
        assert sample_crps(samples, x) == pytest.approx(float(exact), abs=0.02)
        biased = sample_crps(samples, x, fair=False)
        # The empirical distribution of m samples scores worse by E|X - X'| / (2 m).
        assert biased - sample_crps(samples, x) == pytest.approx(
            1 / (m * math.sqrt(math.pi)), abs=0.01
        )


def test_the_energy_score_prefers_the_right_dependence() -> None:
    torch.manual_seed(0)
    factor = torch.linalg.cholesky(torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    x = torch.randn(4000, 2) @ factor.T
    right = torch.randn(30, 4000, 2) @ factor.T
    wrong = torch.randn(30, 4000, 2)  # same marginals, independent
    assert energy_score(right, x) < energy_score(wrong, x) - 0.01


def test_sample_score_gradients() -> None:
    torch.manual_seed(0)
    samples = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    for score in (sample_crps, energy_score):
        assert gradcheck(lambda s, x, f=score: f(s, x, reduction="none"), (samples, x))
    per_example = torch.func.vmap(torch.func.grad(energy_score), in_dims=(1, 0))(
        samples.detach(), x.detach()
    )
    (batch,) = torch.autograd.grad(energy_score(samples, x, reduction="sum"), samples)
    assert torch.allclose(per_example, batch.movedim(1, 0))


@given(finite, finite, st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_identical_samples_never_nan(value: float, observation: float, m: int) -> None:
    samples = torch.full((m, 2, 3), value, requires_grad=True)
    x = torch.full((2, 3), observation)
    for score in (sample_crps, energy_score):
        samples.grad = None
        loss = score(samples, x)
        loss.backward()
        assert torch.isfinite(loss)
        assert samples.grad is not None and torch.isfinite(samples.grad).all()
    assert sample_crps(samples.detach(), x) == pytest.approx(abs(value - observation), rel=1e-4)


def test_sample_score_errors() -> None:
    with pytest.raises(ShapeError, match="at least 2 samples"):
        sample_crps(torch.zeros(1, 3), torch.zeros(3))
    with pytest.raises(ShapeError, match="at least one sample"):
        sample_crps(torch.zeros(0, 3), torch.zeros(3), fair=False)
    assert sample_crps(torch.ones(1, 3), torch.zeros(3), fair=False) == 1
    with pytest.raises(ShapeError, match="share d"):
        energy_score(torch.zeros(4, 3), torch.zeros(2))
