"""Training on rolled-out paths: its gradient, and what it repairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aqf_core.forecasting import QuantileFlowForecaster, QuantileFlowOutput, SeriesSet, read_series
from aqf_core.forecasting.network import ForecastNetwork
from aqf_core.forecasting.rollout import _walk, read_own_values, rolled_losses
from aqf_core.forecasting.sampling import sample_paths
from aqf_core.forecasting.windows import Batch, WindowShape, WindowSource

SHAPE = WindowShape(context=10, horizon=6, lags=(2, 4), season=4, unknown=3)


@pytest.fixture
def data() -> SeriesSet:
    rng = np.random.default_rng(0)
    return read_series(10 + rng.normal(size=(3, 80)).cumsum(1) * 0.1)


@pytest.fixture
def network(data: SeriesSet) -> ForecastNetwork:
    torch.manual_seed(0)
    known = WindowSource(data, SHAPE).n_known
    output = QuantileFlowOutput(paths=4)
    network = ForecastNetwork(output, 3, SHAPE.n_past, known, (5, 4), embedding=2, dropout=0.0)
    torch.nn.init.normal_(network.head.weight, std=0.5)
    return network


def windows(data: SeriesSet) -> Batch:
    source = WindowSource(data, SHAPE, [0, 1, 2])
    return source.batch(np.array([0, 1, 2]), np.array([40, 50, 60]), blind=True)


def test_gradient_is_that_of_finite_differences(network, data) -> None:
    network.double()
    batch = windows(data)
    batch = Batch(*(t.double() if t.is_floating_point() else t for t in batch))

    def loss() -> torch.Tensor:
        torch.manual_seed(1)
        return rolled_losses(network, batch, SHAPE.context, SHAPE.lags, 4)[:, SHAPE.context :].sum()

    network.zero_grad()
    loss().backward()
    for parameter in (network.base.weight, network.head.weight, network.cells[0].weight_hh):
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for k in range(0, len(flat), max(1, len(flat) // 5)):
            old, step = float(flat[k]), 1e-6
            flat[k] = old + step
            up = loss().item()
            flat[k] = old - step
            down = loss().item()
            flat[k] = old
            assert abs((up - down) / (2 * step) - float(gradient[k])) < 1e-5


def test_paths_are_those_of_the_sampler(network, data) -> None:
    """Both roll-outs draw from the same distribution."""
    network.eval()
    batch = windows(data)
    torch.manual_seed(2)
    with torch.no_grad():
        own = read_own_values(batch, SHAPE.context)
        inputs = network.read(own)
        _, *states = network.read_context(inputs[:, : SHAPE.context])
        tail = inputs[:, SHAPE.context :]
        walked = _walk(network, own, tail, SHAPE.context, SHAPE.lags, 20_000, *states)
    drawn = sample_paths(network, batch, SHAPE, 20_000, torch.Generator().manual_seed(0))
    walked = walked.movedim(-1, 1) * batch.scale[:, None, None]
    size = drawn.std(1)
    assert ((walked.mean(1) - drawn.mean(1)).abs() / size).max() < 0.04
    assert (walked.std(1) / size - 1).abs().max() < 0.04


def test_training_on_paths_learns_known_noise() -> None:
    """Skewed noise around a wave: every step has the same quantiles around it."""
    hours = np.arange(24 * 12)
    wave = 10 + 2 * np.sin(2 * np.pi * hours / 24)
    series = wave + np.random.default_rng(0).gumbel(size=(20, len(hours)))
    model = QuantileFlowForecaster(
        "fast", horizon=8, context=24, lags=(24,), hidden=(8,), steps=120, marginals="rolled",
        recalibrate="none", random_state=0, rollout=4,
    ).fit(series)  # fmt: skip
    ahead = 10 + 2 * np.sin(2 * np.pi * np.arange(24 * 12, 24 * 12 + 8) / 24)
    quantiles = model.predict_quantiles([0.1, 0.5, 0.9], n=500).mean(0) - ahead[:, None]
    expected = -np.log(-np.log([0.1, 0.5, 0.9]))  # those of a Gumbel variable
    np.testing.assert_allclose(quantiles.mean(0), expected, atol=0.3)
    assert 0.8 < np.ptp(quantiles, axis=-1).mean() / np.ptp(expected) < 1.2


def test_one_path_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 paths"):
        QuantileFlowForecaster(rollout=1)
