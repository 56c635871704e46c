"""The joint distribution of a flow: agreement with the flow, moments, intervals, scores."""

from __future__ import annotations

import pytest
import torch

from aqf_core import AutoregressiveQuantileFlow, FlowDistribution
from aqf_core.errors import LevelError, ShapeError


def make(
    features: int = 3, context: int = 2, conditioner: str = "masked_mlp"
) -> AutoregressiveQuantileFlow:
    torch.manual_seed(0)
    flow = AutoregressiveQuantileFlow(features, context, conditioner=conditioner, hidden=(8, 8))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return flow


def test_distribution_agrees_with_the_flow() -> None:
    flow = make()
    x, context = torch.randn(5, 3), torch.randn(5, 2)
    dist = flow(context)
    assert isinstance(dist, FlowDistribution)
    assert (dist.batch_shape, dist.event_shape) == ((5,), (3,))
    torch.testing.assert_close(dist.log_prob(x), flow.log_prob(x, context))
    torch.testing.assert_close(dist.cdf(x), flow.cdf(x, context))
    torch.testing.assert_close(dist.icdf(dist.cdf(x)), x, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(dist.quantile(dist.cdf(x)), dist.icdf(dist.cdf(x)))
    torch.testing.assert_close(dist.crps(x), flow.crps(x, context))
    assert dist.sample((4,)).shape == dist.rsample((4,)).shape == (4, 5, 3)
    assert dist.log_prob(torch.zeros(7, 1, 3)).shape == (7, 5)
    assert dist.energy_score(torch.zeros(7, 5, 3), samples=4).shape == (7, 5)
    assert repr(dist) == "FlowDistribution(batch_shape=(5,), event_shape=(3,))"
    with pytest.raises(ShapeError, match=r"\(..., 3\)"):
        dist.log_prob(torch.zeros(5, 2))
    with pytest.raises(ShapeError, match="does not broadcast with batch shape"):
        dist.log_prob(torch.zeros(4, 3))
    with pytest.raises(LevelError, match="coverage"):
        dist.interval(90)
    with pytest.raises(ShapeError, match="coverage must be one number"):
        dist.interval(torch.tensor([0.5, 0.9]))
    with pytest.raises(TypeError, match="must be a torch tensor"):
        dist.log_prob([0.0, 0.0, 0.0])


def test_distribution_expands() -> None:
    dist = make()(torch.randn(5, 2)).expand((4, 5))
    assert dist.batch_shape == (4, 5)
    assert dist.sample((2,)).shape == (2, 4, 5, 3)
    assert dist.log_prob(torch.zeros(3)).shape == (4, 5)
    free = make(context=0)().expand((6,))
    assert free.sample((2,)).shape == (2, 6, 3)
    assert free.log_prob(torch.zeros(3)).shape == (6,)
    assert free.mean.shape == free.stddev.shape == (6, 3)
    with pytest.raises(ShapeError, match="does not expand"):
        dist.expand((4, 6))


@pytest.mark.parametrize(("features", "conditioner"), [(1, "masked_mlp"), (3, "independent")])
def test_moments_and_intervals_are_exact_without_dependence(
    features: int, conditioner: str
) -> None:
    flow = make(features, conditioner=conditioner)
    dist = flow(torch.randn(2, 2))
    draws = dist.sample((100_000,))
    torch.testing.assert_close(dist.mean, draws.mean(0), atol=0.02, rtol=0.02)
    torch.testing.assert_close(dist.stddev, draws.std(0), atol=0.03, rtol=0.03)
    low, high = dist.interval(0.9)
    inside = ((draws >= low) & (draws <= high)).float().mean(0)
    torch.testing.assert_close(inside, torch.full_like(inside, 0.9), atol=5e-3, rtol=0)
    assert dist.mean.requires_grad and low.requires_grad


def test_moments_and_intervals_of_dependent_variables_come_from_samples() -> None:
    dist = make()(torch.randn(2, 2))
    draws = dist.sample((50_000,))
    torch.testing.assert_close(dist.mean, draws.mean(0), atol=0.2, rtol=0.1)
    torch.testing.assert_close(dist.stddev, draws.std(0), atol=0.2, rtol=0.15)
    low, high = dist.interval(0.8)
    inside = ((draws >= low) & (draws <= high)).float().mean(0)
    torch.testing.assert_close(inside, torch.full_like(inside, 0.8), atol=0.05, rtol=0)
    assert torch.equal(dist.mean, dist.mean)  # drawn once


def test_energy_score_of_the_distribution_is_in_data_units() -> None:
    torch.manual_seed(0)
    x = 1000.0 * torch.randn(400, 2)
    flow = AutoregressiveQuantileFlow(2).fit_scaling(x)
    score = flow().energy_score(x, samples=64).mean()
    assert 300 < score < 3000


@pytest.mark.parametrize("conditioner", ["masked_mlp", "independent"])
def test_a_batch_may_be_empty(conditioner: str) -> None:
    dist = make(conditioner=conditioner)(torch.randn(0, 2))
    for value in (dist.mean, dist.stddev, *dist.interval(0.9), dist.sample(), dist.crps(dist.mean)):
        assert value.shape == (0, 3)
    assert dist.log_prob(torch.zeros(3)).shape == dist.energy_score(torch.zeros(3)).shape == (0,)
