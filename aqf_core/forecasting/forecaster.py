"""What every forecaster shares: reading series, fitting, forecasting."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import LevelError
from .errors import NotFittedError, SeriesError
from .fitted import Fitted
from .fitting import fit_network
from .following import follow as follow_windows
from .forecast import Array, Forecast, event_probability
from .frequency import Frequency, parse_frequency
from .series import SeriesSet, read_covariates, read_series
from .settings import Settings, resolve
from .storage import load_forecaster, save_forecaster

__all__ = ["Forecaster"]

Self = TypeVar("Self", bound="Forecaster")


class Forecaster:
    """Probabilistic forecasts of one or many time series by one recurrent network.

    Args:
        preset: "default", "fast" (one layer, fewer steps) or "paper" (the published recipe).
        horizon: steps to forecast; one season by default, 24 for hourly series.
        freq: pandas name of the frequency; read from time stamps if there are any, else "h".
        columns: {"id": ..., "time": ..., "value": ...}, which columns of a long frame to read.
        support: (low, high), None for an open side: paths stay within. "auto" takes (0, None) if
            no value of the training series is negative.
        random_state: seed of training and, unless another is given, of forecasts.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
        verbose: 1 shows a progress bar.
        **settings: anything in `Settings`, for example `steps=500`, `hidden=(64,)`, `lags=(7,)`.
    """

    # Name of the output object in `OUTPUTS`; the one thing in which forecasters differ.
    _output = ""

    def __init__(
        self,
        preset: str = "default",
        *,
        horizon: int | None = None,
        freq: str | Frequency | None = None,
        columns: Mapping[str, str] | None = None,
        support: Sequence[float | None] | str | None = "auto",
        random_state: int | None = None,
        device: str = "auto",
        verbose: int = 0,
        **settings: Any,
    ) -> None:
        if horizon is not None and (not isinstance(horizon, (int, np.integer)) or horizon < 1):
            raise ValueError(f"horizon must be a number of steps >= 1, got {horizon!r}.")
        self.preset = preset
        self.horizon = horizon
        self.freq = None if freq is None else parse_frequency(freq)
        self.columns = columns
        self.support = support
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.settings: Settings = resolve(preset, **settings)
        self._given = settings

    fitted_: Fitted

    def _output_options(self) -> dict[str, Any]:
        """Options of the output object."""
        return {}

    def _output_name(self) -> str:
        return self._output

    def _extra(self) -> dict[str, Any]:
        """Arguments of the class itself, for a file."""
        return {}

    # Fitting ------------------------------------------------------------------------------------

    def fit(self: Self, series: Any, covariates: Any = None) -> Self:
        """Learn from all series together.

        Args:
            series: an array (T,) or (S, T), a list or dict of arrays of any lengths, or a pandas
                frame, wide or long; NaN where missing. See `read_series`.
            covariates: numbers known in advance, (T + future, C) for all series or one per series;
                they must cover the horizon when `predict` is called.

        Returns:
            The forecaster itself.
        """
        return self.fit_set(read_series(series, covariates, self.freq, self.columns))

    def fit_set(self: Self, data: SeriesSet) -> Self:
        """Learn from series that were read before."""
        self.fitted_ = fit_network(self, data)
        return self

    def update(
        self: Self,
        series: Any,
        covariates: Any = None,
        n: int = 100,
        random_state: int | None = None,
    ) -> Self:
        """Go on from longer histories, without training.

        The forecasts that could have been made since the last values known so far are compared with
        what came true; where intervals covered too little or too much, those to come are wider
        or narrower, see `following`. `predict` then goes on from the new values.

        Args:
            series: those of `fit` with new values at their end; new series may be among them.
            covariates: of these series.
            n: paths per forecast.
            random_state: seed; that of the forecaster by default.

        Returns:
            The forecaster itself.
        """
        fitted, data = self._checked(n), self._histories(series, covariates)
        fitted.update(data, n, self._seed(random_state))
        return self

    # Forecasting --------------------------------------------------------------------------------

    def predict(
        self,
        n: int = 200,
        series: Any = None,
        covariates: Any = None,
        random_state: int | None = None,
    ) -> Forecast:
        """Joint sample paths of the next `horizon` steps of every series.

        Args:
            n: paths per series.
            series: histories to go on from; those of `fit` by default. Series of a name that
                training did not see are forecast as unknown ones, from however little history.
            covariates: of these series, covering history and horizon.
            random_state: seed; that of the forecaster by default.
        """
        fitted, data = self._checked(n), self._histories(series, covariates)
        paths = fitted.sample(data, *_ends(data), n, self._seed(random_state))
        return self._forecast(fitted, data, *_ends(data), paths)

    def predict_quantiles(
        self,
        levels: Any = (0.1, 0.5, 0.9),
        series: Any = None,
        covariates: Any = None,
        n: int = 200,
        random_state: int | None = None,
    ) -> Any:
        """Quantiles (S, H, K) at levels (K,); a frame if the series came as one.

        With `marginals="direct"` they are exact; otherwise they rest on n paths.
        """
        columns = [float(u) for u in np.atleast_1d(levels)]
        return self._quantiles(levels, columns, series, covariates, n, random_state)

    def predict_interval(
        self,
        coverage: float = 0.9,
        series: Any = None,
        covariates: Any = None,
        n: int = 200,
        random_state: int | None = None,
    ) -> Any:
        """Central intervals (S, H, 2); a frame with "low" and "high" if the series came as one."""
        if not 0 < coverage < 1:
            raise LevelError(f"coverage must lie strictly between 0 and 1, got {coverage}.")
        levels = [(1 - coverage) / 2, (1 + coverage) / 2]
        return self._quantiles(levels, ["low", "high"], series, covariates, n, random_state)

    def _quantiles(
        self,
        levels: Any,
        columns: list[Any],
        series: Any,
        covariates: Any,
        n: int,
        random_state: int | None,
    ) -> Any:
        fitted, data = self._checked(n), self._histories(series, covariates)
        table = fitted.quantiles(data, *_ends(data), levels, n, self._seed(random_state))
        if data.layout.kind == "array":
            return table
        stamps = self._stamps(fitted, data, *_ends(data))
        return data.layout.frame(data.names, stamps, table, columns)

    def predict_event(
        self,
        event: Any = None,
        series: Any = None,
        covariates: Any = None,
        n: int = 1000,
        random_state: int | None = None,
        **named: Any,
    ) -> Array:
        """Probability (S,) of an event of the whole path, from joint samples.

        Args:
            event: a function of the paths (S, n, H) that returns truth values (S, n).
            series, covariates, n, random_state: see `predict`.
            **named: `peak_above=x`, `total_between=(a, b)`, ..., see `event_probability`.
        """
        forecast = self.predict(n, series, covariates, random_state)
        return event_probability(forecast.samples, event, **named)

    def backtest(
        self,
        series: Any = None,
        windows: int = 1,
        stride: int | None = None,
        covariates: Any = None,
        n: int = 200,
        random_state: int | None = None,
        follow: bool = True,
    ) -> tuple[Forecast, Array]:
        """Forecasts from several origins inside the series, and what came true.

        The network has learned from the series of `fit`; an honest test passes series that go on
        after these.

        Args:
            series: histories that include the truth; those of `fit` by default.
            windows: number of origins per series; the last horizon ends with the series.
            stride: steps between origins; the horizon by default.
            covariates, n, random_state: see `predict`.
            follow: whether the intervals of an origin follow the forecasts that had come true by
                then, as with `update`.

        Returns:
            A forecast of S * windows entries, series after series, and the truth
            (S * windows, H) with NaN where it is missing.
        """
        fitted, data = self._checked(n), self._histories(series, covariates)
        horizon = fitted.shape.horizon
        stride = horizon if stride is None else stride
        if windows < 1 or stride < 1:
            raise ValueError(f"windows and stride must be at least 1, got {windows}, {stride}.")
        back = horizon + stride * np.arange(windows - 1, -1, -1)
        shortest = int(data.lengths.argmin())
        if back[0] >= data.lengths[shortest]:
            raise SeriesError(
                f"{windows} windows of {horizon} steps at a stride of {stride} need more than "
                f"{back[0]} steps, but {data.label(shortest)} has {data.lengths[shortest]}."
            )
        index = np.repeat(np.arange(len(data)), windows)
        origins = np.concatenate([length - back for length in data.lengths])
        rolled = fitted.rolled_out(data, index, origins, n, self._seed(random_state))
        if follow:
            paths, _ = follow_windows(fitted, data, index, origins, rolled)
        else:
            paths = fitted.finish(data, index, origins, rolled)
        truth = np.stack(
            [data.values[i][t : t + horizon] for i, t in zip(index, origins, strict=True)]
        )
        return self._forecast(fitted, data, index, origins, paths), truth

    def _forecast(
        self,
        fitted: Fitted,
        data: SeriesSet,
        index: NDArray[np.int64],
        origins: NDArray[np.int64],
        paths: Array,
    ) -> Forecast:
        stamps = self._stamps(fitted, data, index, origins)
        return Forecast(paths, [data.names[i] for i in index], stamps, data.layout)

    def _stamps(
        self, fitted: Fitted, data: SeriesSet, index: NDArray[np.int64], origins: NDArray[np.int64]
    ) -> list[NDArray[np.datetime64]]:
        horizon, pairs = fitted.shape.horizon, zip(index, origins, strict=True)
        return [data.frequency.range(data.starts[i], horizon, int(t)) for i, t in pairs]

    def _checked(self, n: int) -> Fitted:
        if not hasattr(self, "fitted_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(series).")
        if n < 2:
            raise ValueError(f"n must be at least 2 paths, got {n}.")
        return self.fitted_

    def _histories(self, series: Any, covariates: Any) -> SeriesSet:
        fitted = self.fitted_
        if series is not None:
            return read_series(series, covariates, fitted.data.frequency, self.columns)
        if covariates is None:
            return fitted.data
        return replace(fitted.data, covariates=read_covariates(covariates, fitted.data))

    def _seed(self, random_state: int | None) -> int:
        for seed in (random_state, self.random_state):
            if seed is not None:
                return int(seed)
        return int(torch.randint(2**31 - 1, ()).item())

    def _torch_device(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # Saving -------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted forecaster to one file: safetensors with a JSON header, no pickle.

        The file holds the series as well, so that `predict` goes on from them.
        """
        self._checked(2)
        save_forecaster(self, path)

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """Read a forecaster written by `save`; a changed or foreign file is refused."""
        return load_forecaster(cls, path)

    def __repr__(self) -> str:
        words = [repr(self.preset)]
        words += [f"horizon={self.horizon}"] if self.horizon is not None else []
        words += [f"{name}={value!r}" for name, value in self._given.items()]
        return f"{type(self).__name__}({', '.join(words)})"


def _ends(data: SeriesSet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every series, from its end on."""
    return np.arange(len(data)), data.lengths
