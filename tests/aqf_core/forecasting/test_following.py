"""Intervals that follow what came true: no look-ahead, coverage when the noise changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aqf_core.forecasting import QuantileFlowForecaster, SeriesError
from aqf_core.forecasting.following import LevelMap, stretched

HORIZON, FITTED = 6, 24 * 12


@pytest.fixture(scope="module")
def series() -> np.ndarray:
    """Forty series whose noise grows for 120 hours once the fit is over, and stays large."""
    rng = np.random.default_rng(0)
    hours = np.arange(FITTED + 40 * HORIZON)
    level = 100 + 3 * np.sin(2 * np.pi * hours / 24)
    return level + rng.normal(size=(40, len(hours))) * np.exp((hours - FITTED).clip(0, 120) / 60)


@pytest.fixture
def model(series: np.ndarray) -> QuantileFlowForecaster:
    # Centred windows would grow with the noise and leave less to follow.
    small = {"context": 24, "lags": (24,), "hidden": (8,), "steps": 40, "support": None}
    small["centred"] = False
    model = QuantileFlowForecaster("fast", horizon=HORIZON, random_state=0, **small)
    return model.fit(series[:, :FITTED])


def covered(forecast, truth: np.ndarray) -> np.ndarray:
    low, high = np.moveaxis(forecast.interval(0.8), -1, 0)
    return ((truth >= low) & (truth <= high)).mean(0)


def test_coverage_follows_a_changed_noise(series, model) -> None:
    fixed, truth = model.backtest(series, windows=40, n=100, follow=False)
    following, _ = model.backtest(series, windows=40, n=100)
    assert covered(fixed, truth).max() < 0.72
    assert covered(following, truth).min() > covered(fixed, truth).max()
    low, high = following.interval(0.8).reshape(40, 40, HORIZON, 2)[:, 20:].transpose(3, 0, 1, 2)
    late = truth.reshape(40, 40, HORIZON)[:, 20:]
    steps = ((late >= low) & (late <= high)).mean((0, 1))
    assert steps.min() > 0.75 and steps.max() < 0.84


def test_the_future_does_not_change_a_forecast(series, model) -> None:
    windows = 10
    begin = series.shape[1] - windows * HORIZON
    first, _ = model.backtest(series, windows=windows, n=50)
    for known in (1, 4):  # everything from the origin of this window on is different
        other = series.copy()
        other[:, begin + known * HORIZON :] *= 3.0
        second, _ = model.backtest(other, windows=windows, n=50)
        shape = (len(series), windows, 50, HORIZON)
        a, b = (f.samples.reshape(shape) for f in (first, second))
        np.testing.assert_array_equal(a[:, : known + 1], b[:, : known + 1])
        assert not np.allclose(a[:, known + 2], b[:, known + 2])


def test_overlapping_windows_wait_for_their_outcome(series, model) -> None:
    first, _ = model.backtest(series, windows=4, stride=2, n=50)
    other = series.copy()
    other[:, -HORIZON:] += 50.0  # from the last origin on
    second, _ = model.backtest(other, windows=4, stride=2, n=50)
    np.testing.assert_array_equal(first.samples, second.samples)


def test_series_that_end_at_different_times_do_not_see_each_other(series, model) -> None:
    early, late = series[0, : FITTED + 60], series[1, : FITTED + 120]
    other = late.copy()
    other[FITTED + 60 :] += 50.0  # later than anything forecast of the first series
    pairs = [model.backtest([early, x], windows=4, n=50)[0].samples[:4] for x in (late, other)]
    np.testing.assert_array_equal(*pairs)


def test_update_widens_and_goes_on(series, model, tmp_path) -> None:
    before = np.ptp(model.predict_interval(0.8), axis=-1).mean()
    until = FITTED + 20 * HORIZON
    model.update(series[:, :until])
    after = np.ptp(model.predict_interval(0.8), axis=-1).mean()
    assert after > 1.5 * before
    np.testing.assert_array_equal(
        model.predict(50).samples, model.predict(50, series[:, :until]).samples
    )
    model.save(tmp_path / "model.safetensors")
    again = QuantileFlowForecaster.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(model.predict(50).samples, again.predict(50).samples)
    more = series[:, : until + HORIZON]
    np.testing.assert_array_equal(
        model.update(more).predict(50).samples, again.update(more).predict(50).samples
    )


def test_updates_in_parts_check_every_forecast_once(series, model) -> None:
    model.update(series[:, : FITTED + HORIZON - 1])
    assert model.fitted_.stretch is None
    model.update(series[:, : FITTED + HORIZON + 1])
    first = model.fitted_.stretch
    assert first is not None
    model.update(series[:, : FITTED + 2 * HORIZON - 1])
    assert model.fitted_.stretch is first
    with pytest.raises(SeriesError, match="not be shorter"):
        model.update(series[:, :FITTED])


def test_factors_move_by_the_misses() -> None:
    known = np.ones((200, 2))
    below = np.zeros((200, 2))
    below[:20] = 1.0
    above = np.zeros((200, 2))
    above[:60, 1] = 1.0
    new = stretched(None, below, above, known)
    assert new[0].abs().max() < 1e-12  # as many as there should be
    assert new[1, 0] < 0 < new[1, 1]
    many = new
    for _ in range(100):
        many = stretched(many, below, above, known)
    z = LevelMap(None, many).from_base(torch.linspace(-3, 3, 7)[:, None].expand(-1, 2))
    assert (z.diff(dim=0) > 0).all()
