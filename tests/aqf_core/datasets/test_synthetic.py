"""Generated problems: what is drawn agrees with what is said to be the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from aqf_core.datasets import NOISES, Chain
from aqf_core.metrics import crps_from_quantiles


@pytest.mark.parametrize("name", list(NOISES))
def test_true_quantiles_are_quantiles_of_the_draws(name: str) -> None:
    problem = NOISES[name]
    X, y = problem.draw(4000, seed=3)
    dist = problem.distribution(X[:, 0])
    # Counts come in steps: a uniform draw inside the step makes the PIT uniform.
    below = dist.cdf(y - 1) if name == "poisson" else dist.cdf(y)
    pit = below + np.random.default_rng(0).uniform(size=4000) * (dist.cdf(y) - below)
    assert stats.kstest(pit, "uniform").pvalue > 1e-3
    quantiles = problem.quantiles(X, [0.2, 0.7])
    assert (dist.cdf(quantiles[:, 0]) >= 0.2 - 1e-9).all()
    assert (quantiles[:, 0] < quantiles[:, 1] + 1e-12).all()


@pytest.mark.parametrize(("name", "published"), [("beta", 0.443), ("poisson", 0.898)])
def test_the_scale_is_that_of_the_published_table(name: str, published: float) -> None:
    X, y = NOISES[name].draw(3000, seed=0)
    levels = np.arange(1, 50) / 50
    crps = crps_from_quantiles(levels, NOISES[name].quantiles(X, levels), y)
    assert abs(float(crps) - published) < 0.02


def test_draws_repeat() -> None:
    first, again, other = (Chain(4).draw(10, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[1], other[1])


def test_samples_of_a_chain_have_its_conditionals() -> None:
    chain = Chain(3)
    X = np.array([[-7.0], [0.0], [4.0]])
    draws = chain.sample(X, 20_000, seed=0)
    before = np.concatenate([np.repeat(X[:, :, None], 20_000, 1), draws[..., :-1]], -1)
    noise = draws - (5 * np.sin(before / 3) + before)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(noise.reshape(-1, 3).T) - np.eye(3)).max() < 0.02


def test_a_chain_from_the_unstable_point_parts() -> None:
    ends = Chain(10).sample(np.zeros((1, 1)), 2000, seed=0)[0, :, -1]
    assert 0.4 < (ends > 0).mean() < 0.6
    assert np.mean(np.abs(ends) > 4) > 0.95
