"""Mixtures of flows: exact joint density, Rosenblatt transform and quantiles; conditionals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aqf_core import (
    AutoregressiveQuantileFlow,
    FlowMixture,
    MixturePredictive,
    QuantileFunction,
    make_recalibration,
)
from aqf_core.errors import DomainError, ShapeError

WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def flows(
    features: int | tuple[int, ...] = 3, context: int = 2, **options: object
) -> list[AutoregressiveQuantileFlow]:
    """Three flows that differ in everything but the order of their variables."""
    members = []
    for seed, transformer in enumerate(["spline", "affine", "sigmoid_mixture"]):
        torch.manual_seed(seed)
        flow = AutoregressiveQuantileFlow(features, context, transformer, hidden=(8,), **options)
        with torch.no_grad():
            for parameter in flow.conditioner.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        flow.double().fit_scaling((seed + 1) * torch.randn(50, *flow.event_shape).double())
        members.append(flow)
    return members


def mixture(context: Tensor | None, **options: object) -> FlowMixture:
    size = 0 if context is None else context.shape[-1]
    return FlowMixture([flow(context) for flow in flows(context=size, **options)], WEIGHTS)


def test_density_is_the_weighted_sum() -> None:
    context = torch.randn(5, 2).double()
    dist = mixture(context)
    x = torch.randn(4, 5, 3).double()
    each = torch.stack([flow.log_prob(x, context.expand(4, 5, 2)) for flow in flows()])
    expected = (WEIGHTS.reshape(3, 1, 1) * each.exp()).sum(0).log()
    torch.testing.assert_close(dist.log_prob(x), expected)


@pytest.mark.parametrize("order", ["natural", [2, 0, 1]])
def test_conditionals_are_those_of_the_joint_density(order: str | list[int]) -> None:
    """The product of the conditional densities is the joint one, and levels are its integral."""
    dist = mixture(torch.randn(5, 2).double(), conditioner_options={"order": order})
    x = dist.sample((20,))
    parts = dist.conditionals(x)
    torch.testing.assert_close(parts.log_prob(x).sum(-1), dist.log_prob(x))
    torch.testing.assert_close(parts.cdf(x), dist.cdf(x))
    jacobian = torch.autograd.functional.jacobian(dist.cdf, x[0].clone())
    each = torch.stack([jacobian[b, :, b] for b in range(5)])
    torch.testing.assert_close(each.slogdet().logabsdet, dist.log_prob(x[0]))


@pytest.mark.parametrize("support", [None, (-9.0, 9.0)])
def test_quantile_inverts_the_cdf(support: tuple[float, float] | None) -> None:
    dist = mixture(torch.randn(5, 2).double(), support=support)
    x = dist.sample((20,))
    torch.testing.assert_close(dist.icdf(dist.cdf(x)), x, atol=1e-6, rtol=1e-6)
    u = torch.rand(7, 5, 3).double()
    torch.testing.assert_close(dist.cdf(dist.icdf(u)), u, atol=1e-8, rtol=1e-8)
    assert torch.isfinite(dist.quantile(torch.tensor([0.0, 1.0, 0.5]).double())).all()


def test_samples_follow_the_mixture() -> None:
    dist = mixture(None)
    grid = (torch.arange(4000).double() + 0.5) / 4000
    for x in (dist.sample((4000,)), dist.rsample((4000,)).detach()):
        u = dist.cdf(x)
        assert (u.sort(0).values - grid[:, None]).abs().max() < 0.03
        assert (torch.corrcoef(u.T) - torch.eye(3)).abs().max() < 0.06


def test_sample_gradients_against_finite_differences() -> None:
    context = torch.randn(2, 2).double()
    members = flows()
    u = torch.rand(2, 3).double()

    def quantile(context: Tensor, weights: Tensor) -> Tensor:
        return FlowMixture([flow(context) for flow in members], weights).icdf(u)

    leaves = (context.requires_grad_(), WEIGHTS.clone().requires_grad_())
    assert torch.autograd.gradcheck(quantile, leaves)


def test_moments_and_intervals() -> None:
    torch.manual_seed(0)
    context = torch.randn(2, 2).double()
    for options in ({}, {"conditioner": "independent"}):
        dist = mixture(context, **options)
        draws = dist.sample((20_000,))
        torch.testing.assert_close(dist.mean, draws.mean(0), atol=0.3, rtol=0.1)
        torch.testing.assert_close(dist.stddev, draws.std(0), atol=0.3, rtol=0.15)
        within, between = dist.variance_parts()
        assert (between > 0).all() and within.shape == (2, 3)
        low, high = dist.interval(0.8)
        inside = ((draws >= low) & (draws <= high)).double().mean(0)
        assert (inside - 0.8).abs().max() < (0.05 if not options else 0.01)


def test_scores() -> None:
    context = torch.randn(200, 2).double()
    dist = mixture(context)
    with torch.no_grad():
        x = dist.sample()
        crps, energy = dist.crps(x, levels=64), dist.energy_score(x, samples=16)
        assert crps.shape == (200, 3) and energy.shape == (200,)
        # The mixture that made the data beats each of its members.
        for member in dist.members:
            assert crps.mean() < member.crps(x).mean()
            assert energy.mean() < member.energy_score(x, samples=64).mean()
            assert dist.log_prob(x).mean() > member.log_prob(x).mean()


def test_one_dimension_agrees_with_the_scalar_mixture() -> None:
    context = torch.randn(4, 2).double()
    members = flows(1)
    joint = FlowMixture([flow(context) for flow in members], WEIGHTS)
    scalar = MixturePredictive(
        [flow(context).conditionals(torch.zeros(1)) for flow in members], WEIGHTS
    )
    x, u = torch.randn(4, 1).double(), torch.rand(4, 1).double()
    torch.testing.assert_close(joint.cdf(x), scalar.cdf(x))
    torch.testing.assert_close(joint.icdf(u), scalar.icdf(u))
    torch.testing.assert_close(joint.interval(0.9)[0], scalar.interval(0.9)[0])


def test_shapes_images_and_weights_per_element() -> None:
    images = flows((2, 1, 2), 0, conditioner="pixelcnn")
    dist = FlowMixture([flow() for flow in images])
    x = dist.sample((5,))
    assert x.shape == (5, 2, 1, 2) and dist.cdf(x).shape == x.shape
    torch.testing.assert_close(dist.icdf(dist.cdf(x)), x, atol=1e-6, rtol=1e-6)
    assert dist.mean.shape == (2, 1, 2) and repr(dist).startswith("FlowMixture(batch_shape=()")
    context = torch.randn(4, 2).double()
    sure = torch.eye(3)[:, [0, 1, 2, 0]].double()  # another member for each element
    picked = FlowMixture([flow(context) for flow in flows()], sure)
    x = torch.randn(4, 3).double()
    expected = torch.stack([flow.cdf(x, context) for flow in flows()])
    expected = torch.stack([expected[k, i] for i, k in enumerate([0, 1, 2, 0])])
    torch.testing.assert_close(picked.cdf(x), expected)
    wide = picked.expand((6, 4))
    assert wide.sample((2,)).shape == (2, 6, 4, 3) and wide.log_prob(x).shape == (6, 4)


def test_conditionals_of_a_flow_are_distributions() -> None:
    """They can be recalibrated, one map for each variable."""
    flow, context = flows()[0].requires_grad_(False), torch.randn(300, 2).double()
    x = flow.sample(context=context)
    parts = flow(context).conditionals(x)
    torch.testing.assert_close(parts.cdf(x), flow.cdf(x, context))
    torch.testing.assert_close(parts.crps(x), flow.crps(x, context), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts.log_prob(x).sum(-1), flow.log_prob(x, context))
    moved = x + torch.tensor([0.0, 1.0, 0.0])  # the second variable is biased
    parts = flow(context).conditionals(moved)
    repaired = make_recalibration("spline", per_column=True).fit(parts, moved)(parts)
    assert abs(repaired.cdf(moved)[:, 1].mean() - 0.5) < 0.02 < parts.cdf(moved)[:, 1].mean() - 0.5


def test_errors() -> None:
    one, two = flows()[0], flows(2)[0]
    context = torch.zeros(4, 2).double()
    with pytest.raises(ShapeError, match="empty list"):
        FlowMixture([])
    with pytest.raises(ShapeError, match=r"share their event shape, got \(3,\) and \(2,\)"):
        FlowMixture([one(context), two(context)])
    reversed_ = flows(conditioner_options={"order": "reversed"})[0]
    with pytest.raises(ShapeError, match="same order"):
        FlowMixture([one(context), reversed_(context)])
    with pytest.raises(ShapeError, match="2 components need weights"):
        FlowMixture([one(context), one(context)], torch.ones(3))
    with pytest.raises(DomainError, match="non-negative"):
        FlowMixture([one(context), one(context)], torch.tensor([1.0, -1.0]))
    with pytest.raises(ShapeError, match="FlowMixture"):
        MixturePredictive([one(context), QuantileFunction("spline")()])
