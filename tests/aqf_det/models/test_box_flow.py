"""Box distributions: residual spaces, exact start, recovery of known laws, joint samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from aqf_core.metrics import crps_from_quantiles
from aqf_core.transformers import TRANSFORMERS
from aqf_det.datasets import to_original_pixels
from aqf_det.models import BoxDistribution, BoxFlow, FlowOptions
from aqf_det.models.box_distribution import SidePredictive, base_points
from aqf_det.models.sides import MARGIN, Sides

LEVELS = torch.arange(1, 200) / 200.0
IDENTITY = ("affine", "spline", "deep_sigmoid", "unconstrained")


def boxes(count: int = 6, passes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Random point boxes and standard deviations (T, N, 4)."""
    low = torch.rand(passes, count, 2) * 50
    mean = torch.cat([low, low + 60 + torch.rand(passes, count, 2) * 60], -1)
    return mean, 0.5 + 3 * torch.rand(passes, count, 4)


def flow(context: int = 5, **options: object) -> BoxFlow:
    return BoxFlow(context, FlowOptions.parse(options))


def perturb(model: torch.nn.Module, scale: float) -> None:
    """Move a flow away from the identity it starts as."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))


@pytest.mark.parametrize("valid", [False, True])
@given(r=st.floats(-60, 60), sigma=st.floats(0.1, 30), width=st.floats(4, 200))
def test_residuals_round_trip(valid: bool, r: float, sigma: float, width: float) -> None:
    mean = torch.tensor([10.0, 20.0, 10 + width, 20 + width / 2], dtype=torch.float64)
    sides = Sides(mean, torch.full((4,), sigma).double(), valid)
    residual = torch.full((4,), r, dtype=torch.float64).requires_grad_()
    x = sides.to_pixels(residual)
    (slope,) = torch.autograd.grad(x.sum(), residual)
    assert bool((slope >= 0).all()) and bool(slope.isfinite().all())
    back, log_slope = sides.to_residual_and_slope(x.detach())
    _, centre, reach, _ = sides._frame()
    inside = ((x - centre).abs() / reach > 2e-4) if valid else torch.ones(4, dtype=torch.bool)
    torch.testing.assert_close(back[inside], residual.detach()[inside], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_slope[inside], -slope.log()[inside], rtol=1e-6, atol=1e-6)
    if valid:
        assert bool((x[:2] <= centre[:2]).all() and (x[2:] >= centre[2:]).all())
        near = (sides.mean + sides.sigma * r - centre).mul(torch.tensor([-1, -1, 1, 1])) / reach
        linear = near >= MARGIN
        expected = sides.mean + sides.sigma * r
        torch.testing.assert_close(x.detach()[linear], expected[linear])


@pytest.mark.parametrize("transformer", IDENTITY)
@pytest.mark.parametrize("kind", ["quantile", "cdf"])
@pytest.mark.parametrize("dependence", ["independent", "autoregressive"])
def test_a_new_flow_is_the_stage_one_gaussian(transformer: str, kind: str, dependence: str) -> None:
    mean, sigma = boxes()
    model = flow(kind=kind, transformer=transformer, dependence=dependence)
    with torch.no_grad():
        found = model(torch.randn(1, 6, 5), mean, sigma)
        q = found.quantiles(LEVELS)
        samples = found.samples(64)
    expected = Normal(mean[0], sigma[0]).icdf(LEVELS[:, None, None]).movedim(0, 1)
    # Sampled marginals carry the error of their points, exact ones that of float32.
    tolerance = 0.02 if dependence == "autoregressive" else 2e-5
    gap = (q[:, 10:-10] - expected[:, 10:-10]).abs()
    assert float((gap / sigma[0][:, None]).max()) < 5 * tolerance
    assert float((gap / sigma[0][:, None]).mean()) < tolerance
    z = base_points(64)
    torch.testing.assert_close(
        samples, mean[0][:, None] + sigma[0][:, None] * z, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("transformer", sorted(set(TRANSFORMERS) - set(IDENTITY)))
def test_other_families_start_near_the_gaussian(transformer: str) -> None:
    mean, sigma = boxes()
    with torch.no_grad():
        found = flow(kind="quantile", transformer=transformer)(torch.randn(1, 6, 5), mean, sigma)
        gap = found.quantiles(LEVELS) - BoxDistribution.gaussian(mean, sigma).quantiles(LEVELS)
    assert float((gap / sigma[0][:, None]).abs()[:, 10:-10].mean()) < 0.1


@pytest.mark.parametrize("dependence", ["independent", "autoregressive"])
def test_loss_of_the_start_is_the_gaussian_crps(dependence: str) -> None:
    mean, sigma = boxes(200)
    model = flow(kind="quantile", dependence=dependence, levels=512)
    target = mean + sigma * torch.randn_like(mean)
    with torch.no_grad():
        loss = model.loss(torch.randn(1, 200, 5), mean, sigma, target)
    exact = SidePredictive(Sides(mean, sigma)).crps(target) / sigma
    torch.testing.assert_close(2 * loss.mean(), exact.sum(-1).mean(), rtol=2e-3, atol=0)


def test_gaussian_distribution_is_exact() -> None:
    mean, sigma = boxes()
    found = BoxDistribution.gaussian(mean, sigma)
    normal = Normal(mean[0], sigma[0])
    x = mean[0] + 1.5 * sigma[0]
    marginal = found.marginal()
    torch.testing.assert_close(marginal.cdf(x), normal.cdf(x))
    torch.testing.assert_close(marginal.log_prob(x), normal.log_prob(x))
    aleatoric, epistemic = found.variance_parts()
    torch.testing.assert_close(aleatoric, sigma[0] ** 2)
    assert float(epistemic.abs().max()) == 0


@pytest.mark.parametrize("kind", ["quantile", "cdf"])
def test_marginals_of_a_trained_flow_are_consistent(kind: str) -> None:
    """cdf inverts quantiles, density integrates, moments agree with samples."""
    mean, sigma = boxes(3)
    model = flow(kind=kind, transformer="spline")
    perturb(model, 0.15)
    with torch.no_grad():
        found = model(torch.randn(1, 3, 5), mean, sigma)
        marginal = found.marginal()
        q = found.quantiles(LEVELS)
        assert bool((q.diff(dim=1) >= 0).all())
        u = marginal.cdf(q.movedim(1, 0)).movedim(0, 1)
        torch.testing.assert_close(u, LEVELS[:, None].expand_as(u), atol=1e-3, rtol=0)
        samples = found.samples(8192)
        std = (sum(found.variance_parts())).sqrt()
        torch.testing.assert_close(samples.std(1), std, rtol=0.05, atol=0)


@pytest.mark.parametrize("passes", [1, 3])
def test_joint_samples_are_valid_boxes_even_when_the_flow_is_wild(passes: int) -> None:
    mean, sigma = boxes(8, passes)
    model = flow(kind="quantile", dependence="autoregressive")
    perturb(model, 1.0)
    with torch.no_grad():
        # Deviations as large as the boxes themselves: most Gaussian samples would be inside out.
        samples = model(torch.randn(passes, 8, 5), mean, 30 * sigma).samples(2000)
    assert samples.shape == (8, 2000, 4)
    assert bool(samples.isfinite().all())
    assert bool((samples[..., 0] < samples[..., 2]).all())
    assert bool((samples[..., 1] < samples[..., 3]).all())


@pytest.mark.parametrize("size", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize("place", [0.0, 500.0, 20000.0])
def test_joint_samples_of_tiny_boxes_keep_an_area_in_float32(size: float, place: float) -> None:
    mean = place + torch.tensor([[[0.0, 0.0, size, 2 * size]]])
    model = flow(kind="quantile", dependence="autoregressive")
    perturb(model, 1.0)
    with torch.no_grad():
        samples = model(torch.randn(1, 1, 5), mean, torch.full((1, 1, 4), 30.0)).samples(512)
    meta = {"scale_factor": (1.7, 0.3), "pad_param": (20.0, 0.0, 33.0, 0.0)}
    for boxes_found in (samples, to_original_pixels(samples, meta)):
        assert bool((boxes_found[..., :2] < boxes_found[..., 2:]).all())


def fit(model: BoxFlow, residual: torch.Tensor, steps: int = 120) -> BoxDistribution:
    """Train on boxes that share one point box and one scale; returns their distribution."""
    mean = torch.tensor([[[100.0, 100.0, 200.0, 200.0]]])
    sigma = torch.full_like(mean, 4.0)
    target = mean[0] + 4.0 * residual
    context = torch.ones(1, len(target), 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(steps):
        many = (mean.expand(1, len(target), 4), sigma.expand(1, len(target), 4))
        loss = model.loss(context, *many, target[None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return model(context[:, :1], mean, sigma)


@pytest.mark.parametrize("kind", ["quantile", "cdf"])
def test_a_flow_learns_a_skewed_law_that_no_gaussian_has(kind: str) -> None:
    residual = torch.distributions.Exponential(1.0).sample((256, 4)) * 2 - 1
    with torch.no_grad():
        truth = torch.distributions.Exponential(1.0).icdf(LEVELS) * 2 - 1
    found = fit(flow(kind=kind, transformer="spline", levels=8), residual)
    got = (found.quantiles(LEVELS)[0] - torch.tensor([100.0, 100, 200, 200])) / 4
    assert float((got - truth[:, None])[10:-10].abs().mean()) < 0.15
    best_gaussian = fit(flow(kind="gaussian", branch=True, loss="crps"), residual)
    new = 100 + 4 * (torch.distributions.Exponential(1.0).sample((4000,)) * 2 - 1)

    def crps(distribution: BoxDistribution) -> float:
        q = distribution.quantiles(LEVELS)[0, :, 0]
        return float(crps_from_quantiles(LEVELS, q.expand(len(new), -1), new).mean())

    assert crps(found) < 0.98 * crps(best_gaussian)


def test_autoregressive_flow_learns_the_dependence_of_opposite_sides() -> None:
    shared = torch.randn(512, 2)
    residual = torch.cat([shared, 0.8 * shared + 0.6 * torch.randn(512, 2)], -1)
    correlations = {}
    for dependence in ("independent", "autoregressive"):
        model = flow(kind="quantile", transformer="spline", dependence=dependence)
        samples = fit(model, residual).samples(4096)[0]
        correlations[dependence] = torch.corrcoef(samples.detach().T)[0, 2].item()
    assert abs(correlations["independent"]) < 0.05
    assert 0.7 < correlations["autoregressive"] < 0.9


def test_mixture_of_passes_has_exact_quantiles() -> None:
    """Two sharp passes far apart: the quantiles jump from one to the other."""
    mean = torch.tensor([0.0, 10.0]).reshape(2, 1, 1).expand(2, 1, 4)
    found = BoxDistribution.gaussian(mean, torch.full_like(mean, 0.1))
    q = found.quantiles(torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(q[0, :, 0], torch.tensor([0.0, 10.0]), atol=1e-3, rtol=0)
    aleatoric, epistemic = found.variance_parts()
    assert math.isclose(float(epistemic[0, 0]), 25.0, rel_tol=1e-5)
    assert math.isclose(float(aleatoric[0, 0]), 0.01, rel_tol=1e-4)
