"""Losses of conditionals: identities, units, integration error, bounded and discrete outcomes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aqf_core.errors import UnknownNameError
from aqf_core.levels import LevelStrategy
from aqf_core.losses import gaussian_crps, gaussian_nll
from aqf_core.objectives import conditional_loss
from aqf_core.quantile_function import QuantileDistribution, QuantileFunction
from aqf_core.spaces import OutputSpace
from aqf_core.transformers import Transformer, make_transformer

EXPRESSIVE = [
    "deep_sigmoid",
    "monotone_net",
    "piecewise_linear",
    "sigmoid_mixture",
    "spline",
    "unconstrained",
]
SUPPORTS = [None, (0.0, None), (None, 3.0), (-1.0, 4.0)]


def example(
    name: str, direction: str, support: tuple[float | None, float | None] | None = None
) -> tuple[Transformer, OutputSpace, Tensor, Tensor]:
    t = make_transformer(name, direction=direction).double().requires_grad_(False)
    space = OutputSpace(support=support).double()
    h = 0.7 * torch.randn(12, t.n_params, dtype=torch.float64)
    return t, space, space.to_data(2 * torch.randn(12, dtype=torch.float64)), h


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("direction", ["quantile", "cdf"])
@pytest.mark.parametrize("name", ["affine", "spline", "sigmoid_mixture"])
def test_every_way_of_integrating_agrees(name: str, direction: str, support) -> None:
    t, space, x, h = example(name, direction, support)
    reference = QuantileDistribution(t, h, space).crps(x, levels=2000)
    fixed = LevelStrategy("fixed", 100)
    crps = conditional_loss(t, space, x, h, "crps", fixed)
    assert torch.allclose(crps, reference, rtol=5e-3)
    assert torch.allclose(conditional_loss(t, space, x, h, "quantile", fixed), crps / 2)
    # Eight random levels are right on average, and not far off each time.
    draws = torch.stack([conditional_loss(t, space, x, h, "crps", 8) for _ in range(200)])
    assert torch.allclose(draws.mean(0), reference, rtol=0.02)
    assert (draws.std(0) < 0.15 * reference).all()


def test_closed_forms_are_used_and_right() -> None:
    t, space, x, h = example("affine", "quantile")
    loc, scale = t.location_scale(h)
    crps = conditional_loss(t, space, x, h, "crps", 1)
    assert torch.allclose(crps, gaussian_crps(loc, scale, x, reduction="none"))
    nll = conditional_loss(t, space, x, h, "nll")
    assert torch.allclose(nll, gaussian_nll(loc, scale, x, reduction="none"))
    t, space, x, h = example("piecewise_linear", "quantile")
    one, other = (conditional_loss(t, space, x, h, "crps", n) for n in (1, 2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("direction", ["quantile", "cdf"])
def test_losses_are_in_units_of_the_data(direction: str) -> None:
    """Rescaling the data changes no loss, because losses are divided by the unit."""
    t, _, _, h = example("spline", direction)
    data = torch.randn(500, dtype=torch.float64).exp()
    for support in (None, (0.0, None)):
        losses = []
        for factor in (1.0, 1000.0):
            space = OutputSpace(support=support).double().fit(factor * data)
            fixed = LevelStrategy("fixed", 16)
            x = factor * data[:12]
            losses.append([conditional_loss(t, space, x, h, o, fixed) for o in ("crps", "nll")])
        for one, other in zip(*losses, strict=True):
            assert torch.allclose(one, other)


def test_several_features_with_their_own_scales() -> None:
    t = make_transformer("spline")
    x = torch.randn(50, 3) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, 5.0, -3.0])
    space = OutputSpace(3).fit(x)
    loss = conditional_loss(t, space, x, torch.zeros(50, 3, t.n_params), "crps", 64)
    assert loss.shape == (50, 3)
    # Standardised normal data scored under N(0, 1): 1 / sqrt(pi) on average.
    assert torch.allclose(loss.mean(0), torch.tensor(1 / math.sqrt(math.pi)), atol=0.1)
    bounded = OutputSpace(3, support=(-50.0, 60.0)).fit(x)
    for direction in ("quantile", "cdf"):
        t = make_transformer("spline", direction=direction)
        h = torch.zeros(50, 3, t.n_params)
        assert conditional_loss(t, bounded, x, h, "crps").shape == (50, 3)


def test_lattice_levels_are_less_noisy_than_independent_ones() -> None:
    t, space, x, h = example("spline", "quantile")

    def noise(strategy: str) -> float:
        draws = []
        for _ in range(50):
            leaf = h.clone().requires_grad_()
            conditional_loss(t, space, x, leaf, "quantile", strategy).sum().backward()
            draws.append(leaf.grad)
        return float(torch.stack(draws).var(0).sum())

    assert noise("lattice") < 0.6 * noise("iid")


def test_unknown_objective_lists_the_names() -> None:
    t, space, x, h = example("spline", "quantile")
    with pytest.raises(UnknownNameError, match="crps, nll, quantile"):
        conditional_loss(t, space, x, h, "likelihood")


def test_crps_of_a_bernoulli_variable_is_the_brier_score() -> None:
    """On the support [0, 1] a very wide distribution in logit space is the step CDF of 0/1."""
    t, space = make_transformer("affine", direction="cdf"), OutputSpace(support=(0.0, 1.0))
    p = torch.tensor([0.03, 0.4, 0.97])
    scale = torch.tensor(1e5)
    h = t.gaussian_params(scale * torch.special.ndtri(p), scale)
    for label in (0.0, 1.0):
        crps = conditional_loss(t, space, torch.full((3,), label), h, "crps")
        assert torch.allclose(crps, (p - label) ** 2, atol=1e-4)


def fit_labels(name: str, labels: Tensor, count: int) -> QuantileFunction:
    model = QuantileFunction(name, direction="cdf", support=(-0.5, count - 0.5))
    model.fit_scaling(labels)
    steps = 100 * count
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.03, total_steps=steps)
    for _ in range(steps):
        batch = labels[torch.randint(len(labels), (128,))]
        optimiser.zero_grad()
        model.loss(batch, levels=4).backward()
        optimiser.step()
        schedule.step()
    return model.requires_grad_(False)


@pytest.mark.parametrize("probabilities", [(0.3, 0.7), (0.1, 0.4, 0.2, 0.3)])
@pytest.mark.parametrize("name", EXPRESSIVE)
def test_step_like_cdfs_of_discrete_labels(name: str, probabilities: tuple[float, ...]) -> None:
    p = torch.tensor(probabilities)
    labels = torch.multinomial(p, 4000, replacement=True).float()
    dist = fit_labels(name, labels, len(p))()
    between = torch.arange(len(p) - 1) + 0.5
    expected = p.cumsum(0)[:-1]
    assert torch.allclose(dist.cdf(between), expected, atol=0.07)
    # Half-way to the next labels the CDF has hardly changed: it is a staircase.
    assert (dist.cdf(between + 0.2) - dist.cdf(between - 0.2) < 0.15).all()
    # The CRPS of a staircase over labels is the sum of Brier scores of the events "<= k".
    brier = (expected - (labels[:200, None] <= torch.arange(len(p) - 1)).float()).square().sum(-1)
    assert abs(dist.crps(labels[:200]).mean() / brier.mean() - 1) < 0.1
