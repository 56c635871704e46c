"""The parts of an estimator, each against what it should compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aqf_core import AutoregressiveQuantileFlow, MixturePredictive, QuantileDistribution
from aqf_core.estimators import QuantileFlowRegressor
from aqf_core.estimators.bag import BagMLP, GaussianChain
from aqf_core.estimators.calibrating import pool_variances
from aqf_core.estimators.counts import PoissonPredictive
from aqf_core.estimators.encoding import FeatureEncoding
from aqf_core.estimators.loop import Schedule
from aqf_core.estimators.optimiser import BagAdamW
from aqf_core.estimators.pooling import PooledPredictive
from aqf_core.estimators.preparation import group_rows, make_split
from aqf_core.estimators.presets import resolve
from aqf_core.losses import sample_crps
from aqf_core.transformers import make_transformer

RNG = np.random.default_rng(0)


# Encoding -------------------------------------------------------------------------------------


def encode(encoding: FeatureEncoding, X: np.ndarray) -> np.ndarray:
    rows = encoding(encoding.standardise(X)).numpy()
    return rows / encoding.factor.numpy() + encoding.shift.numpy()


def test_bins_hold_equal_shares_and_fill_in_turn() -> None:
    x = RNG.exponential(size=(4000, 1))
    encoding = FeatureEncoding(bins=4).fit(x)
    bins = encode(encoding, x)[:, 1:]
    assert bins.shape == (4000, 4)
    # Where a bin is partly filled, those before are full and those after are empty.
    assert (np.diff(bins, axis=1) <= 0).all()
    inside = ((bins > 0) & (bins < 1)).mean(0)
    assert np.abs(inside - 0.25).max() < 0.01


def test_weights_move_the_bins_as_copies_do() -> None:
    x = RNG.normal(size=(200, 1))
    w = RNG.integers(1, 4, 200)
    weighted = FeatureEncoding(bins=5).fit(x, weights=w.astype(float))
    copied = FeatureEncoding(bins=5).fit(np.repeat(x, w, axis=0))
    assert torch.allclose(weighted.bin_left, copied.bin_left)
    assert np.allclose(weighted.ranges, copied.ranges)


def test_categories_missing_values_and_constants() -> None:
    X = np.array([[0.0, 5.0, 1.0], [1.0, 5.0, np.nan], [2.0, 5.0, 3.0], [np.nan, 5.0, 2.0]])
    encoding = FeatureEncoding(bins=8).fit(X, categories=[3, None, None])
    # Numbers 5 and x, no bins for the constant, two bins for x, three indicators, two for missing.
    rows = encode(encoding, X)
    assert rows.shape == (4, 2 + 2 + 3 + 2)
    assert np.allclose(rows[:, 4:7], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert np.allclose(rows[:, 7:], [[0, 0], [0, 1], [0, 0], [1, 0]])
    assert np.allclose(rows[:, 0], 0)
    wild = np.array([[7.0, 1e9, -1e9]])
    assert np.abs(encode(encoding, wild)).max() < 10


def test_many_columns_get_fewer_bins() -> None:
    assert FeatureEncoding(bins=8).fit(RNG.normal(size=(50, 1500))).width == 1500


def test_long_tables_get_more_bins() -> None:
    assert resolve("default", (1500, 3)) == resolve("default")
    assert resolve("default", (10**6, 3)).bins == 32
    assert resolve("fast", (10**6, 200)).bins == 8  # as many as before: too many columns
    assert resolve("paper", (10**6, 3)).bins == 0
    assert resolve("default", (10**6, 3), bins=5).bins == 5
    X = RNG.normal(size=(6000, 2))
    model = QuantileFlowRegressor("fast", steps=2, members=2).partial_fit(X[:100], X[:100, 0])
    assert model.partial_fit(X, X[:, 0]).settings_.bins == 8  # those of the first rows stay
    assert model.fit(X, X[:, 0]).settings_.bins == 16


# Bag --------------------------------------------------------------------------------------------


def test_members_are_independent_networks() -> None:
    torch.manual_seed(0)
    bag = BagMLP(3, 1, 4, 2, hidden=(8, 8))
    x = torch.randn(3, 5, 4)
    h = bag(x, x)
    alone = bag.select(1)(x[1:2], x[1:2])
    assert torch.allclose(h[1:2], alone, atol=1e-6)
    h[1].sum().backward()
    for p in bag.parameters():
        assert p.grad is not None and (p.grad[0] == 0).all() and (p.grad[2] == 0).all()


def test_members_ignore_what_they_do_not_see() -> None:
    sees = torch.tensor([[True] * 4, [True, False, False, True]])
    bag = BagMLP(2, 1, 4, 3, sees=sees)
    torch.nn.init.normal_(bag.skip_weight)
    x, moved = torch.randn(2, 5, 4, requires_grad=True), torch.tensor([0.0, 1.0, -2.0, 0.0])
    before, after = bag(x, x), bag(x, x + moved)
    assert not torch.isclose(before[0], after[0]).any()
    assert torch.equal(before[1], after[1])
    before.sum().backward()
    assert x.grad is not None and bag.weight0.grad is not None
    assert torch.equal(x.grad.ne(0).any(1), sees)
    assert torch.equal(bag.weight0.grad.ne(0).any(-1), sees)
    alone = bag.select(1)
    assert torch.equal(alone(x[1:], x[1:] + moved), before[1:])
    assert bag.weight0[1].std() > bag.weight0[0].std()  # fewer inputs, larger weights


def test_some_members_of_a_bag_see_no_bins() -> None:
    X = RNG.normal(size=(60, 3))
    model = QuantileFlowRegressor(members=4, steps=2, unbinned=0.5).fit(X, X[:, 0]).fitted_.model
    sees = model.network.mask_context.squeeze(-1).bool()
    assert sees[:2].all()
    assert torch.equal(sees[2:], model.encoding.unbinned.expand(2, -1))
    assert sees[2:].sum() == 2 * 3
    alone = QuantileFlowRegressor("fast", steps=2, unbinned=1.0).fit(X, X[:, 0]).fitted_.model
    assert alone.network.mask_context is None
    with pytest.raises(ValueError, match="unbinned must be a share from 0 to 1, got 2"):
        QuantileFlowRegressor("fast", unbinned=2.0).fit(X, X[:, 0])


@pytest.mark.parametrize("kind", ["masked", "gaussian"])
def test_autoregressive_bags_step_by_step(kind: str) -> None:
    torch.manual_seed(0)
    members, d = 2, 3
    bag = (
        BagMLP(members, d, 4, 2, hidden=(12, 12), init_scale=1.0)
        if kind == "masked"
        else GaussianChain(members, d, 4, hidden=(12,), init_scale=1.0)
    )
    for p in bag.parameters():
        torch.nn.init.normal_(p, std=0.3)
    context, x = torch.randn(members, 6, 4), torch.randn(members, 6, d)
    h = bag(x, context)
    assert torch.allclose(h, bag.stepwise(x, context), atol=1e-5)
    jacobian = torch.autograd.functional.jacobian(lambda v: bag(v, context)[0, 0].sum(-1), x)
    seen = jacobian[:, 0, 0].abs() > 1e-6
    assert torch.equal(seen, torch.ones(d, d).tril(-1).bool())


def test_a_gaussian_chain_is_a_multivariate_gaussian() -> None:
    torch.manual_seed(0)
    chain = GaussianChain(1, 2, 1, hidden=(4,), init_scale=1.0).double()
    flow = AutoregressiveQuantileFlow(2, 1, "affine", chain).double()
    context = torch.zeros(1, 1, 1, dtype=torch.float64)
    draws = flow.sample(20000, context)[:, 0, 0]
    gauss = torch.distributions.MultivariateNormal(draws.mean(0), draws.T.cov())
    x = draws[:50]
    own = flow.log_prob(x[:, None, None], context).squeeze()
    assert torch.allclose(own, gauss.log_prob(x), atol=0.1)


# Optimiser and schedule -------------------------------------------------------------------------


def test_adamw_agrees_with_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = BagMLP(2, 1, 3, 2, hidden=(4,)), BagMLP(2, 1, 3, 2, hidden=(4,))
    theirs.load_state_dict(ours.state_dict())
    optimiser = BagAdamW(ours, weight_decay=0.1)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(5):
        x = torch.randn(2, 6, 3)
        for network in (ours, theirs):
            (1e-3 * network(x, x).square().sum()).backward()
        optimiser.step(0.01)
        reference.step()
        reference.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_bad_gradients_stop_one_member_only() -> None:
    bag = BagMLP(2, 1, 1, 1, hidden=())
    optimiser = BagAdamW(bag)
    before = bag.weight0.detach().clone()
    x = torch.tensor([[[1.0]], [[float("nan")]]])
    bag(x, x).sum().backward()
    optimiser.step(0.1)
    assert bag.weight0.isfinite().all()
    assert bag.weight0[0] != before[0] and bag.weight0[1] == before[1]


def test_learning_rate_goes_up_and_down() -> None:
    schedule = Schedule(steps=100, learning_rate=1.0, warm_up=0.2)
    rates = [schedule.rate(step) for step in range(100)]
    peak = int(np.argmax(rates))
    assert 15 <= peak <= 25 and max(rates) == pytest.approx(1.0, abs=0.02)
    assert rates[0] < 0.1 and rates[-1] < 0.01
    assert np.all(np.diff(rates[peak:]) <= 0)


# Rows -------------------------------------------------------------------------------------------


def test_grouping_makes_weights_and_copies_equal() -> None:
    X, y = RNG.integers(0, 3, (40, 2)).astype(float), RNG.integers(0, 2, 40).astype(float)
    X[3] = np.nan
    w = RNG.integers(0, 3, 40)
    order = RNG.permutation(int(w.sum()))
    copies = group_rows(np.repeat(X, w, axis=0)[order], np.repeat(y, w)[order], None)
    for a, b in zip(group_rows(X, y, w), copies, strict=True):
        assert np.array_equal(a, b, equal_nan=True)


def test_every_row_is_left_out_once_per_round() -> None:
    split = make_split(23, members=10, folds=5)
    left = torch.cat(split.held).bincount(minlength=23)
    assert (left == 2).all()
    for learn, held in zip(split.learn, split.held, strict=True):
        assert sorted(torch.cat([learn, held]).tolist()) == list(range(23))


# Pooling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 10])
def test_table_of_a_mixture_agrees_with_root_finding(members: int) -> None:
    torch.manual_seed(0)
    spline = make_transformer("spline").double()
    h = 0.1 * torch.randn(members, 30, spline.n_params, dtype=torch.float64)
    h[..., 0] += torch.randn(members, 30)
    mixture = MixturePredictive(QuantileDistribution(spline, h))
    pooled = PooledPredictive(mixture)
    u = torch.tensor([1e-4, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 0.9999], dtype=torch.float64)
    exact = mixture.icdf(u[:, None]).T
    assert torch.allclose(pooled.quantiles(u), exact, atol=1e-6)
    assert torch.allclose(pooled.icdf(u[:, None]).T, exact, atol=1e-6)
    rough = mixture.cdf(pooled.quantiles_at(torch.special.ndtri(u), exact=False).T).T - u
    assert rough.abs().mean() < 2e-3 and rough.abs().max() < 0.05


def test_pooled_quantiles_never_cross() -> None:
    torch.manual_seed(0)
    spline = make_transformer("spline")
    h = torch.randn(5, 20, spline.n_params)
    pooled = PooledPredictive(MixturePredictive(QuantileDistribution(spline, h)))
    levels = torch.rand(100_000)
    order = levels.argsort()
    rough = pooled.quantiles_at(torch.special.ndtri(levels), exact=False)
    assert (rough[:, order].diff(dim=-1) >= 0).all()
    assert (pooled.quantiles(levels[:2000])[:, levels[:2000].argsort()].diff(dim=-1) >= 0).all()


def test_variances_of_a_bag() -> None:
    """Members that lean towards rows they know do not fool the estimate by much."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(20000, generator=rng)
    whims = 0.7 * torch.randn(10, 20000, generator=rng)
    honest = noise - whims[0]
    for lean in (0.0, 0.3):
        knowing = whims[1:] * (1 - 0.5 * lean) + lean * noise
        s2, t2 = pool_variances(honest, knowing - whims[0], torch.ones(20000))
        assert abs(float(t2) - 0.49) < 0.12 and abs(float(s2) - 1.0) < 0.12


# Counts -----------------------------------------------------------------------------------------


def test_poisson_mixture() -> None:
    rates = torch.tensor([[1.0, 20.0, 300.0], [2.0, 30.0, 500.0]], dtype=torch.float64)
    dist = PoissonPredictive(rates)
    counts = torch.arange(0, 900, dtype=torch.float64)
    pmf = dist.log_prob(counts[:, None]).exp()
    assert torch.allclose(pmf.sum(0), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(pmf.cumsum(0), dist.cdf(counts[:, None]), atol=1e-9)
    assert torch.allclose((pmf * counts[:, None]).sum(0), dist.mean)
    u = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    q = dist.icdf(u[:, None])
    assert (dist.cdf(q) >= u[:, None]).all() and (dist.cdf(q - 1) < u[:, None]).all()
    x = torch.tensor([0.0, 27.5, 420.0], dtype=torch.float64)
    torch.manual_seed(0)
    assert torch.allclose(
        dist.crps(x), sample_crps(dist.sample((20000,)), x, reduction="none"), 0.05
    )
