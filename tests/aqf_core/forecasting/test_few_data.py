"""Series that are short, slow, high above zero or of very different lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aqf_core.datasets import simulate_loads
from aqf_core.forecasting import QuantileFlowForecaster, SeriesError, read_series
from aqf_core.forecasting.calibration import fit_widening
from aqf_core.forecasting.fitting import validation_steps
from aqf_core.forecasting.following import stretched
from aqf_core.forecasting.network import _departures
from aqf_core.forecasting.settings import Settings
from aqf_core.forecasting.windows import WindowShape, WindowSource

SMALL: dict[str, Any] = {"steps": 20, "hidden": (8,), "batch_size": 16, "random_state": 0}


def high(level: float, days: int = 30) -> np.ndarray:
    """Hourly values whose daily swing is small beside their level, and noise smaller still."""
    hours = np.arange(24 * days)
    noise = 0.2 * np.random.default_rng(0).normal(size=len(hours))
    return level + 3 * np.sin(2 * np.pi * hours / 24) + noise


def test_a_high_level_does_not_hide_what_changes() -> None:
    for level in (300.0, 1e6):
        series = high(level)
        model = QuantileFlowForecaster("fast", horizon=24, **SMALL).fit(series[:-48])
        assert model.fitted_.shape.centred
        forecast, truth = model.backtest(series, windows=2, n=50)
        # A thousandth of a level of 300 would be larger than the noise.
        assert np.abs(forecast.median() - truth).mean() < 0.3


def test_centred_models_are_saved_and_go_on(tmp_path: Path) -> None:
    series = high(300.0)
    model = QuantileFlowForecaster("fast", horizon=24, **SMALL).fit(series[:-48])
    model.save(tmp_path / "model")
    again = QuantileFlowForecaster.load(tmp_path / "model")
    assert again.fitted_.shape.centred
    for each in (model, again):
        each.update(series)
    assert np.array_equal(again.predict(20).samples, model.predict(20).samples)
    assert np.abs(model.predict(50).median() - 300.0).max() < 5.0


def test_loads_are_divided_by_their_mean_only() -> None:
    model = QuantileFlowForecaster("fast", horizon=24, **SMALL).fit(simulate_loads(3, 24 * 20))
    assert not model.fitted_.shape.centred
    series = np.linspace(1.0, 2.0, 24 * 20)
    fitted = QuantileFlowForecaster("paper", horizon=24, **SMALL).fit(1e3 + series).fitted_
    assert not fitted.shape.centred  # the published recipe


def test_centred_windows_forget_level_and_unit() -> None:
    shape = WindowShape(48, 24, (24,), 24, centred=True)
    index, origins = np.zeros(2, np.int64), np.array([200, 400])
    plain, moved = (
        WindowSource(read_series(values), shape).batch(index, origins)
        for values in (high(50.0), 1e-3 * high(50.0) - 7.0)
    )
    assert torch.allclose(plain.target, moved.target, atol=1e-4)
    assert torch.allclose(plain.past, moved.past, atol=1e-4)
    back = moved.target * moved.scale[:, None] + moved.location[:, None]
    truth = 1e-3 * high(50.0)[200 - 48 : 224] - 7.0
    assert np.allclose(back[0].numpy(), truth, atol=1e-6)
    flat = WindowSource(read_series(np.full(100, 5.0)), shape).scales(index[:1], np.array([60]))
    assert flat == pytest.approx([0.5])


def test_departures_are_exact_where_nothing_is_left_over() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(1.0 + 1e-3 * rng.normal(size=(500, 4)))
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    weights = torch.tensor([0.5, 0.3, -0.2, 0.4, 0.0], dtype=x.dtype)
    found = _departures(x, x @ weights)
    assert (x @ found - x @ weights).abs().max() < 1e-4


def test_short_monthly_and_yearly_series_are_forecast() -> None:
    rng = np.random.default_rng(0)
    months = np.arange(60)
    monthly = 20 + 5 * np.sin(2 * np.pi * months / 12) + 0.5 * rng.normal(size=60)
    model = QuantileFlowForecaster("fast", freq="MS", horizon=6, **SMALL).fit(monthly[:-6])
    fitted = model.fitted_
    assert fitted.recalibration is None and fitted.stretch is not None
    assert (fitted.stretch >= 0).all()
    wide, bare = (
        np.diff(f.quantiles(fitted.data, np.zeros(1, int), np.array([54]), [0.1, 0.9], 200, 0))
        for f in (fitted, fitted.raw())
    )
    assert (wide >= bare - 1e-6).all()
    forecast, truth = model.backtest(monthly, n=100)
    assert np.abs(forecast.median() - truth).mean() < 2.5
    yearly = QuantileFlowForecaster("fast", freq="Y", horizon=3, **SMALL).fit(monthly[:30])
    assert yearly.fitted_.shape.context == 12
    assert np.isfinite(yearly.update(monthly[:40]).predict(20).samples).all()


def test_one_factor_widens_what_was_too_narrow_and_nothing_else() -> None:
    rng = torch.Generator().manual_seed(0)
    truth = torch.randn(10, 4, generator=rng)
    truth[0, 0] = np.nan
    paths = torch.randn(10, 200, 4, generator=rng)
    narrow = fit_widening(0.4 * paths, truth)
    assert narrow is not None and 0.5 < float(narrow[0, 0]) < 1.5
    unchanged = fit_widening(4.0 * paths, truth)
    assert unchanged is not None and not unchanged.any()
    assert fit_widening(paths, torch.full((10, 4), np.nan)) is None
    hit = np.ones((9, 1))
    far = stretched(torch.full((2, 1), 1.5, dtype=torch.float64), 0 * hit, 0 * hit, hit)
    assert 1.2 < float(far[0, 0]) < 1.5  # comes back by itself


def test_a_short_series_leaves_the_held_out_steps_of_long_ones_alone() -> None:
    data = read_series([np.arange(480.0), np.arange(60.0), np.arange(200.0)])
    assert validation_steps(Settings(), data, 24).tolist() == [120, 0, 48]
    short = read_series([np.arange(80.0), np.arange(40.0)])
    assert validation_steps(Settings(), short, 24).tolist() == [24, 0]
    with pytest.raises(SeriesError, match="leaves too little"):
        validation_steps(Settings(validation=48), short, 24)
