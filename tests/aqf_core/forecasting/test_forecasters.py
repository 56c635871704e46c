"""The forecasters: one contract for all of them, recovery, invariances, what cannot be learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from aqf_core.datasets import simulate_loads
from aqf_core.errors import LevelError, UnknownNameError
from aqf_core.forecasting import (
    DeepARForecaster,
    Forecast,
    Forecaster,
    MQRNNForecaster,
    NotFittedError,
    QuantileFlowForecaster,
    SeriesError,
)

SMALL: dict[str, Any] = {
    "steps": 12, "hidden": (8,), "embedding": 4, "batch_size": 8, "context": 48, "lags": (24,),
    "random_state": 0,
}  # fmt: skip
KINDS: dict[str, Callable[..., Forecaster]] = {
    "aqf": QuantileFlowForecaster,
    "paper": lambda **options: QuantileFlowForecaster("paper", **options),
    "deepar": DeepARForecaster,
    "student": lambda **options: DeepARForecaster(distribution="student-t", **options),
    "mqrnn": MQRNNForecaster,
}


def loads(series: int = 4, days: int = 24) -> np.ndarray:
    return simulate_loads(series, 24 * days)


@pytest.fixture(scope="module", params=list(KINDS))
def fitted(request: pytest.FixtureRequest) -> Forecaster:
    return KINDS[request.param](horizon=24, **SMALL).fit(loads())


def test_paths_quantiles_and_intervals_agree(fitted: Forecaster) -> None:
    forecast = fitted.predict(n=50)
    assert isinstance(forecast, Forecast) and forecast.shape == (4, 50, 24)
    assert np.asarray(forecast).shape == (4, 50, 24) and (forecast.samples >= 0).all()
    table = fitted.predict_quantiles([0.1, 0.5, 0.9], n=50)
    assert table.shape == (4, 24, 3) and (np.diff(table) >= 0).all()
    assert np.allclose(fitted.predict_interval(0.8, n=50), table[..., [0, 2]])
    spread = forecast.samples.std(1)
    assert (np.abs(forecast.quantiles([0.1, 0.5, 0.9]) - table) < 0.5 * spread[..., None]).all()


def test_events_are_shares_of_paths(fitted: Forecaster) -> None:
    forecast = fitted.predict(n=100)
    peak = np.median(forecast.samples.max(-1), axis=1)
    assert np.allclose(fitted.predict_event(peak_above=peak, n=100), 0.5)
    total = forecast.samples.sum(-1)
    low, high = np.quantile(total, [0.2, 0.8], axis=1)
    within = fitted.predict_event(total_between=(low, high), n=100)
    assert np.allclose(within, 0.6, atol=0.02)
    own = fitted.predict_event(lambda paths: paths[..., 0] < paths[..., -1], n=100)
    assert own.shape == (4,) and ((own >= 0) & (own <= 1)).all()


def test_equal_seeds_give_equal_models(fitted: Forecaster) -> None:
    kind = type(fitted)
    extra = fitted._extra()
    again = kind(fitted.preset, horizon=24, **SMALL, **extra).fit(loads())
    assert np.array_equal(again.predict(20).samples, fitted.predict(20).samples)
    other = fitted.predict(20, random_state=1).samples
    assert not np.array_equal(other, fitted.predict(20).samples)


def test_backtest_returns_what_came_true(fitted: Forecaster) -> None:
    forecast, truth = fitted.backtest(windows=3, stride=12, n=20)
    assert forecast.shape == (12, 20, 24) and truth.shape == (12, 24)
    assert np.array_equal(truth[2], loads()[0, -24:])
    assert np.array_equal(truth[1], loads()[0, -36:-12])
    assert forecast.stamps[2][0] - forecast.stamps[1][0] == np.timedelta64(12, "h")


def test_a_forecast_does_not_look_ahead(fitted: Forecaster) -> None:
    series = loads()
    forecast, _ = fitted.backtest(series, windows=1, n=20)
    series[:, -24:] = 1e6
    assert np.array_equal(fitted.backtest(series, windows=1, n=20)[0].samples, forecast.samples)
    assert np.array_equal(fitted.predict(20, series[:, :-24]).samples, forecast.samples)


def test_units_do_not_matter() -> None:
    def fit(factor: float) -> np.ndarray:
        model = QuantileFlowForecaster(horizon=24, **SMALL).fit(factor * loads())
        return np.asarray(model.predict_quantiles([0.1, 0.9])) / factor

    assert np.allclose(fit(1e-6), fit(1.0), rtol=0.02)
    assert np.allclose(fit(1e6), fit(1.0), rtol=0.02)


def test_held_out_windows_choose_recalibrate_and_then_train() -> None:
    def fit(**options: Any) -> Forecaster:
        return QuantileFlowForecaster(horizon=24, **SMALL, **options).fit(loads())

    before, after, auto = fit(refit=0), fit(refit=0.5), fit(refit=0, marginals="auto")
    one, two = before.fitted_, after.fitted_
    assert one.recalibration is not None and two.recalibration is not None
    z = torch.linspace(-2, 2, 9)[:, None].double()
    assert torch.equal(one.recalibration.from_base(z), two.recalibration.from_base(z))
    assert not torch.equal(one.network.head.weight, two.network.head.weight)
    chosen = auto.fitted_.shape.marginals
    assert chosen in ("both", "direct", "rolled")
    same = fit(refit=0, marginals=chosen) if chosen != "rolled" else auto
    assert np.array_equal(same.predict(20).samples, auto.predict(20).samples)


@pytest.mark.parametrize("kind", ["aqf", "deepar", "mqrnn"])
def test_known_noise_is_recovered(kind: str) -> None:
    """A daily profile with a known autoregressive disturbance; marginals are normal."""
    rng = np.random.default_rng(0)
    hours = np.arange(24 * 100)
    noise = np.zeros((4, len(hours)))
    for t in range(1, len(hours)):
        noise[:, t] = 0.7 * noise[:, t - 1] + rng.normal(size=4)
    series = 20 + 6 * np.sin(2 * np.pi * hours / 24) + noise
    options = {"steps": 300, "hidden": (24,), "embedding": 2, "batch_size": 32, "context": 48}
    windows, horizon = 20, 12
    model = KINDS[kind](horizon=horizon, lags=(24,), random_state=0, **options)
    model.fit(series[:, : -windows * horizon])
    forecast, truth = model.backtest(series, windows=windows, n=200)
    low, middle, high = np.moveaxis(forecast.quantiles([0.1, 0.5, 0.9]), -1, 0)
    # Far from the origin nothing is left of the disturbance there. Averages over 80 windows.
    last = np.tile(len(hours) - 1 - horizon * np.arange(windows - 1, -1, -1), 4)
    profile = 20 + 6 * np.sin(2 * np.pi * last / 24)
    spread = 1.0 / np.sqrt(1 - 0.7**2)
    assert np.abs(middle[:, -1] - profile).mean() < 0.5 * spread
    assert 0.75 < (high - low)[:, -1].mean() / (2 * 1.2816 * spread) < 1.25
    assert 0.70 < ((truth >= low) & (truth <= high)).mean() < 0.88
    # Neighbouring steps of a path depend on each other as they do in truth.
    left = forecast.samples - forecast.samples.mean(1, keepdims=True)
    dependence = (left[..., -1] * left[..., -2]).mean() / (left[..., -1] ** 2).mean()
    assert 0.5 < dependence < 0.9


def test_skewed_noise_is_skewed_for_the_flow() -> None:
    rng = np.random.default_rng(0)
    series = 10 + rng.exponential(size=(3, 24 * 60))
    options = SMALL | {"steps": 150, "learning_rate": 0.02}
    table = (
        QuantileFlowForecaster(horizon=12, **options)
        .fit(series)
        .predict_quantiles([0.05, 0.5, 0.95])
    )
    low, mid, high = np.moveaxis(table, -1, 0).mean((1, 2))
    assert (high - mid) / (mid - low) > 2  # 3.5 in truth
    assert abs(low - 10) < 0.3


def test_missing_values_and_short_series() -> None:
    series = list(loads(4))
    series[0] = series[0].copy()
    series[0][100:130] = np.nan
    series[1] = series[1][-200:]
    series[2] = series[2].copy()
    series[2][-10:] = np.nan
    model = QuantileFlowForecaster(horizon=24, **SMALL).fit(series)
    assert np.isfinite(model.predict(20).samples).all()


def test_new_series_are_forecast_from_little_history() -> None:
    model = QuantileFlowForecaster(horizon=24, **SMALL).fit(dict(enumerate(loads())))
    for history in (1, 5, 60):
        forecast = model.predict(20, {"new": loads(5)[4, :history]})
        assert np.isfinite(forecast.samples).all()
    known = model.predict(20, {0: loads()[0]}).samples
    assert not np.array_equal(known, model.predict(20, {"new": loads()[0]}).samples)


def test_frames_are_answered_by_frames() -> None:
    index = pd.date_range("2024-03-01", periods=24 * 20, freq="h", name="when")
    wide = pd.DataFrame(loads(2, 20).T, index, ["a", "b"])
    model = MQRNNForecaster(horizon=24, **SMALL).fit(wide)
    table = model.predict_quantiles([0.1, 0.9])
    assert table.shape == (24, 4) and table.index[0] == index[-1] + pd.Timedelta("1h")
    assert list(table.columns) == [("a", 0.1), ("a", 0.9), ("b", 0.1), ("b", 0.9)]
    long = wide.reset_index().melt("when", var_name="who", value_name="kw")
    table = model.fit(long).predict_interval(0.8)
    assert list(table.columns) == ["who", "when", "low", "high"] and len(table) == 48
    assert (table["low"] <= table["high"]).all()
    several = model.backtest(wide, windows=2, n=20)[0].frame([0.5])
    assert list(several.columns) == ["series", "when", 0.5] and len(several) == 96
    frame = model.predict(20).frame([0.5])
    assert frame["who"].unique().tolist() == ["a", "b"]


def test_covariates_tell_what_is_coming() -> None:
    rng = np.random.default_rng(0)
    event = (rng.random(24 * 61) < 0.2).astype(float)
    series = 10 + 5 * event[: 24 * 60] + 0.3 * rng.normal(size=(2, 24 * 60))
    options = SMALL | {"steps": 200, "hidden": (16,), "learning_rate": 0.02}
    model = QuantileFlowForecaster(horizon=24, **options).fit(series, event)
    ahead = event[24 * 60 :] > 0
    median = model.predict_quantiles([0.5])[0, :, 0]
    assert median[ahead].min() > 13 and median[~ahead].max() < 12
    without = MQRNNForecaster(horizon=24, **SMALL).fit(series, event[: 24 * 60])
    with pytest.raises(SeriesError, match="do not cover the horizon; 1464 steps"):
        without.predict()
    assert without.predict(20, covariates=event).shape == (2, 20, 24)
    with pytest.raises(SeriesError, match="fitted with covariates"):
        without.predict(series=series)
    with pytest.raises(SeriesError, match="with 1 covariates, got 2"):
        without.predict(series=series, covariates=np.zeros((24 * 61, 2)))
    with pytest.raises(SeriesError, match="without covariates"):
        MQRNNForecaster(horizon=24, **SMALL).fit(series).predict(20, series, event)


@pytest.mark.parametrize(
    ("series", "options", "said"),
    [
        (np.zeros(500), {}, "series 0 is 0 throughout"),
        ([loads(1)[0], np.full(500, 3.0)], {}, "series 1 is 3 throughout"),
        (np.arange(20.0), {}, "20 steps, not more than the horizon of 24"),
        (np.full(500, np.nan), {}, "missing throughout"),
        (loads(), {"validation": 24 * 23}, "leaves too little"),
        (loads(), {"support": (0, 1)}, "outside the support"),
    ],
)
def test_one_sentence_for_what_cannot_be_learned(
    series: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SeriesError) as error:
        QuantileFlowForecaster(horizon=24, **SMALL, **options).fit(series)
    text = str(error.value)
    assert said in text and "\n" not in text and text.endswith(".")


def test_one_sentence_for_what_cannot_be_forecast() -> None:
    model = QuantileFlowForecaster(horizon=24, **SMALL)
    with pytest.raises(NotFittedError, match="call fit"):
        model.predict()
    model.fit(loads())
    gap = loads()
    gap[1, -60:] = np.nan
    with pytest.raises(SeriesError, match="series 1 has no observation in the 48 steps"):
        model.predict(series=gap)
    with pytest.raises(SeriesError, match="need more than 1200 steps"):
        model.backtest(windows=50)
    with pytest.raises(SeriesError, match="say which event"):
        model.predict_event()
    with pytest.raises(SeriesError, match="unknown event 'dip_above'"):
        model.predict_event(dip_above=3)
    with pytest.raises(LevelError, match="strictly between 0 and 1"):
        model.predict_quantiles([0.0, 0.5])
    with pytest.raises(LevelError, match="coverage"):
        model.predict_interval(1.0)
    with pytest.raises(ValueError, match="at least 2 paths"):
        model.predict(1)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"freq": "often"}, UnknownNameError, "unknown frequency 'often'"),
        ({"preset": "slow"}, UnknownNameError, "unknown preset 'slow'"),
        ({"stesp": 3}, TypeError, "unknown setting 'stesp'"),
        ({"horizon": 0}, ValueError, "horizon must be"),
        ({"steps": 0}, ValueError, "steps must be at least 1"),
        ({"lags": (0,)}, ValueError, "lags must be at least 1 step"),
        ({"hidden": ()}, ValueError, "hidden must name sizes"),
        ({"calendar": "moon"}, UnknownNameError, "unknown calendar 'moon'"),
    ],
)
def test_settings_are_checked_early(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        QuantileFlowForecaster(**options)


def test_training_stops_keeps_the_best_and_can_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from aqf_core.forecasting import training

    model = QuantileFlowForecaster(horizon=24, **(SMALL | {"steps": 80, "patience": 0.05}))
    model.verbose = 1
    history = model.fit(loads()).fitted_.history
    assert history.best == min(history.held_out)
    assert "held_out" in capsys.readouterr().err
    calls = []

    def stop(*arguments: Any) -> int:
        calls.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(training._Watch, "look", stop)
    with pytest.warns(UserWarning, match="interrupted"):
        model.fit(loads())
    assert model.fitted_.history.interrupted and np.isfinite(model.predict(20).samples).all()
