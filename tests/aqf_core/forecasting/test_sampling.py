"""Rolling out: the fast way and the parallel pass agree, lags within the horizon, calibration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from aqf_core.forecasting import OUTPUTS, Output, make_output, read_series
from aqf_core.forecasting.calibration import fit_recalibration, repair_paths
from aqf_core.forecasting.network import ForecastNetwork
from aqf_core.forecasting.sampling import direct_quantiles, sample_paths
from aqf_core.forecasting.windows import WindowShape, WindowSource


class Location(Output):
    """Says one number, without any noise."""

    n_params = 1

    def sample(self, z: Tensor, h: Tensor) -> Tensor:
        return h[0].clone()


def windows(lags: tuple[int, ...], horizon: int = 6) -> tuple[WindowSource, WindowShape]:
    rng = np.random.default_rng(0)
    data = read_series(10 + rng.gamma(2.0, size=(3, 80)), freq="h")
    shape = WindowShape(context=20, horizon=horizon, lags=lags, season=6, unknown=3)
    return WindowSource(data, shape, [0, 1, 2]), shape


def network_for(output: Output, source: WindowSource) -> ForecastNetwork:
    torch.manual_seed(0)
    network = ForecastNetwork(output, 3, source.shape.n_past, source.n_known, (8, 8), 4)
    with torch.no_grad():
        network.head.weight.mul_(10)
    network.start_from(source.batch(np.array([0, 1, 2]), np.array([50, 55, 60])))
    return network.eval()


@pytest.mark.parametrize("lags", [(), (6,), (1, 2, 4, 12)])
def test_rolled_out_paths_are_what_the_parallel_pass_says_about_them(lags: tuple[int, ...]) -> None:
    source, shape = windows(lags)
    network = network_for(Location(), source)
    series, origins = np.array([0, 2]), np.array([40, 45])
    path = sample_paths(network, source.batch(series, origins, blind=True), shape, 3)
    assert torch.allclose(path[:, 0], path[:, 1])
    # Had the path come true, the same network would have predicted each of its steps.
    values = [v.copy() for v in source.data.values]
    for row, i, t in zip(path[:, 0].double().numpy(), series, origins, strict=True):
        values[i][t : t + shape.horizon] = row
    again = WindowSource(read_series(values, freq="h"), shape, [0, 1, 2])
    batch = again.batch(series, origins)
    h = network.parameters_of(network.read(batch))[..., 0]
    predicted = network.base_of(batch) + network.unit * batch.spread[:, None] * h
    expected = batch.target[:, shape.context :]
    assert torch.allclose(predicted[:, shape.context :], expected, atol=1e-4)


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_every_output_trains_and_draws(name: str) -> None:
    source, shape = windows((6,))
    network = network_for(make_output(name), source)
    batch = source.batch(np.array([0, 1]), np.array([50, 55]))
    losses = network(batch)
    assert losses.shape == batch.target.shape
    losses.mean().backward()
    assert all(p.grad is not None for p in network.parameters())
    blind = source.batch(np.array([0, 1]), np.array([50, 55]), blind=True)
    paths = sample_paths(network, blind, shape, 7, support=(0.0, 12.0))
    assert paths.shape == (2, 7, 6) and bool(((paths >= 0) & (paths <= 12.001)).all())


@pytest.mark.parametrize("name", ["flow", "gaussian", "quantiles"])
def test_the_first_step_is_the_same_both_ways(name: str) -> None:
    """Nothing is hidden from a blind window at its origin, so paths and quantiles must agree."""
    source, shape = windows((6,))
    network = network_for(make_output(name), source)
    batch = source.batch(np.array([0, 1]), np.array([50, 55]), blind=True)
    paths = sample_paths(network, batch, shape, 2000, torch.Generator().manual_seed(0))
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    z = torch.special.ndtri(levels)[:, None].expand(3, shape.horizon)
    exact = direct_quantiles(network, batch, shape, z)[..., 0]
    drawn = paths[..., 0].double().quantile(levels, 1).t()
    assert torch.allclose(exact.double(), drawn, rtol=2e-3)


def test_student_t_loss_is_the_likelihood() -> None:
    output = make_output("student-t")
    h, y = torch.randn(50, 3), 3 * torch.randn(50)
    df = 2.0 + torch.nn.functional.softplus(h[:, 2] + 2.0 + 0.541325) + 1e-4
    scale = torch.nn.functional.softplus(h[:, 1] + 0.541325) + 1e-4
    truth = -torch.distributions.StudentT(df, h[:, 0], scale).log_prob(y)
    assert torch.allclose(output.loss(h, y), truth, atol=1e-4)


@pytest.mark.parametrize("kind", ["spline", "isotonic"])
def test_repaired_paths_are_calibrated_and_keep_their_ranks(kind: str) -> None:
    torch.manual_seed(0)
    common = torch.randn(800, 1, 1).double()
    paths = common + 0.6 * torch.randn(800, 100, 2).double() * torch.tensor([1.0, 0.5])
    truth = common[:, 0] + torch.randn(800, 2).double()
    recalibration = fit_recalibration(kind, paths[:400], truth[:400])
    assert recalibration is not None
    repaired = repair_paths(paths[400:], recalibration)
    assert torch.equal(repaired.argsort(1), paths[400:].argsort(1))
    low, high = repaired.quantile(torch.tensor([0.1, 0.9]).double(), 1)
    held = ((truth[400:] >= low) & (truth[400:] <= high)).double().mean(0)
    assert bool(((held - 0.8).abs() < 0.06).all())


def test_too_few_windows_are_not_recalibrated() -> None:
    paths, truth = torch.randn(10, 20, 3), torch.randn(10, 3)
    assert fit_recalibration("spline", paths, truth) is None
    assert fit_recalibration("none", paths.repeat(9, 1, 1), truth.repeat(9, 1)) is None


def test_ties_are_ranked_by_chance() -> None:
    """Half of the mass at zero: the truth is zero as often, so nothing must change there."""
    torch.manual_seed(0)
    paths = torch.randn(1000, 200, 1).double().clamp_min(0)
    truth = torch.randn(1000, 1).double().clamp_min(0)
    recalibration = fit_recalibration("isotonic", paths, truth)
    assert recalibration is not None
    repaired = repair_paths(paths, recalibration)
    assert abs(float((repaired <= 0).double().mean()) - 0.5) < 0.05
    assert (repaired - paths).abs().mean() < 0.05


def test_windows_do_not_look_ahead_and_scale_by_what_was_observed() -> None:
    source, shape = windows((2, 6))
    batch = source.batch(np.array([1]), np.array([40]), blind=True)
    changed = [v.copy() for v in source.data.values]
    changed[1][40:] = 1e6
    other = WindowSource(read_series(changed, freq="h"), shape, [0, 1, 2])
    again = other.batch(np.array([1]), np.array([40]), blind=True)
    for name in ("past", "known", "scale", "spread", "ids"):
        assert torch.equal(getattr(batch, name), getattr(again, name)), name
    values = source.data.values[1]
    assert float(batch.scale) == pytest.approx(np.abs(values[20:40]).mean())
    assert float(batch.spread * batch.scale) == pytest.approx(
        np.abs(values[20:40] - values[14:34]).mean()
    )
    # The unknown previous value at the second step is that of the season before.
    assert float(batch.past[0, 21, 0] * batch.scale) == pytest.approx(values[40 - 6])
    assert batch.known[0, 20, -1] == 1 and batch.known[0, 21, -1] == 0
