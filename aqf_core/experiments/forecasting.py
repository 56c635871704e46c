"""Every forecasting method on the same rolling windows of the same series."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.time_series import TimeSeries
from ..forecasting import (
    DeepARForecaster,
    Forecaster,
    Frequency,
    MQRNNForecaster,
    QuantileFlowForecaster,
    SeriesError,
    SeriesSet,
    read_series,
)
from ..forecasting.distributed import rank, wait
from ..forecasting.following import follow
from ..validation import lookup
from .forecast_scoring import LEVELS, path_energy, score_points, score_table, table_of
from .gluonts_peer import fit_gluonts
from .records import Record
from .runner import Job

__all__ = ["METHODS", "Study", "choose_forecasters", "frequency_of", "jobs_for"]

Array = NDArray[np.float64]

# Series whose bands are kept for the figure, and consecutive windows of each.
SHOWN_SERIES, SHOWN_WINDOWS = 3, 3
# Windows whose joint paths are drawn and judged; single steps are judged on all windows.
PATH_WINDOWS = 300
VIEWS = ("direct", "rolled", "both")


@dataclass(frozen=True)
class Study:
    """What is forecast and how it is tested.

    Attributes:
        data: the series.
        horizon: steps of a forecast; origins are one horizon apart.
        context: steps of history that networks read.
        windows: test windows per series, at the end.
        apart: how many of them are scored by themselves, see `TimeSeries`.
        paths: sample paths per window.
        steps: optimiser steps of every network; None as the preset says.
        preset: of the forecasters.
        marginals: where the distributions of steps come from; None as the preset says.
    """

    data: TimeSeries
    horizon: int = 24
    context: int = 168
    windows: int = 28
    apart: int = 0
    paths: int = 200
    steps: int | None = None
    preset: str = "default"
    marginals: str | None = None

    @property
    def key(self) -> Record:
        """What a stored result depends on, besides method and seed."""
        return {
            "dataset": self.data.name,
            "data": self.data.fingerprint,
            "horizon": self.horizon,
            "context": self.context,
            "windows": self.windows,
            "apart": self.apart,
            "paths": self.paths,
            "steps": self.steps,
            "preset": self.preset,
            "marginals": self.marginals,
        }

    def series(self) -> SeriesSet:
        """All series with the test span."""
        data = read_series(self.data.frame)
        shortest = int(data.lengths.argmin())
        most = int(data.lengths[shortest]) // self.horizon - 2
        if self.windows > most:
            raise SeriesError(
                f"{self.windows} test windows of {self.horizon} steps leave too little of "
                f"{data.label(shortest)}, which has {data.lengths[shortest]} steps; choose "
                + (f"at most {most} windows." if most > 0 else "a smaller horizon.")
            )
        return data

    def training(self, data: SeriesSet) -> SeriesSet:
        """The part before the test span."""
        return data.cut(data.lengths - self.windows * self.horizon)


@dataclass(frozen=True)
class Windows:
    """The windows that are tested.

    Attributes:
        data: all series with the test span.
        index: number of the series of each window, (W,).
        origins: of the windows, (W,).
        horizon: steps H of a forecast.
        apart: later windows that are scored by themselves.
    """

    data: SeriesSet
    index: NDArray[np.int64]
    origins: NDArray[np.int64]
    horizon: int
    apart: Windows | None = None

    @classmethod
    def of(cls, study: Study) -> Windows:
        """The windows at the end of every series."""
        data = study.series()

        def between(first: int, last: int, apart: Windows | None = None) -> Windows:
            back = study.horizon * np.arange(first, last, -1)
            origins = (data.lengths[:, None] - back).reshape(-1)
            index = np.repeat(np.arange(len(data)), len(back))
            return cls(data, index, origins, study.horizon, apart)

        apart = study.apart
        return between(study.windows, apart, between(apart, 0) if apart else None)

    def truth(self, back: int = 0) -> Array:
        """What came true, or what was so many steps before, NaN before the beginning: (W, H)."""
        table = np.full((len(self.index), self.horizon), np.nan)
        for row, (i, t) in enumerate(zip(self.index, self.origins - back, strict=True)):
            first = max(0, -t)
            table[row, first:] = self.data.values[i][t + first : max(0, t + self.horizon)]
        return table

    def some(self, most: int) -> NDArray[np.int64]:
        """Which windows to take if all would be too many, evenly spread."""
        return np.linspace(0, len(self.index) - 1, min(most, len(self.index))).astype(int)

    @property
    def places(self) -> tuple[SeriesSet, NDArray[np.int64], NDArray[np.int64]]:
        """Series, numbers of series, and origins."""
        return self.data, self.index, self.origins


@dataclass(frozen=True)
class ForecastMethod:
    """A way to forecast.

    Attributes:
        name: on the command line.
        title: in tables.
        about: settings, for the page.
        run: study, windows, seed -> entries of a record.
        package: what must be installed, None for nothing.
        seeded: whether the seed matters.
    """

    name: str
    title: str
    about: str
    run: Callable[[Study, Windows, int], Record]
    package: str | None = None
    seeded: bool = True


def _network(kind: type[Forecaster], **options: Any) -> Callable[..., Record]:
    def run(study: Study, windows: Windows, seed: int) -> Record:
        model = kind(
            study.preset,
            horizon=study.horizon,
            context=study.context,
            steps=study.steps,
            marginals=study.marginals,
            random_state=seed,
            **options,
        )
        began = time.process_time()
        model.fit_set(study.training(windows.data))
        seconds = time.process_time() - began
        entries = {"nd": float("nan")}
        try:
            if rank() == 0:  # the others only help to train
                entries = _judge(model, study, windows, seed)
        finally:
            wait()
        return entries | {"fit_seconds": round(seconds, 1)}

    return run


def _judge(model: Forecaster, study: Study, windows: Windows, seed: int) -> Record:
    """Scores of a fitted forecaster, before and after recalibration, and bands to draw."""
    fitted, truth, index = model.fitted_, windows.truth(), windows.index
    began = time.process_time()
    rolled = fitted.rolled_out(*windows.places, study.paths, seed)
    paths, then = follow(fitted, *windows.places, rolled)
    drawing = time.process_time() - began
    table = table_of(paths)
    scores = score_table(table, truth, index)
    fixed = score_table(table_of(fitted.finish(*windows.places, rolled)), truth, index)
    # Without recalibration, in each way that a step can be read off.
    views = {}
    every = fitted.network.output.exact and model.settings.marginals != "rolled"
    for view in VIEWS if every else (fitted.shape.marginals,):
        bare = fitted.raw().seen_as(view).finish(*windows.places, rolled)
        views[view] = score_table(table_of(bare), truth, index)
    raw = views[fitted.shape.marginals]
    some = windows.some(PATH_WINDOWS)
    if windows.apart is not None:
        late = then.rolled_out(*windows.apart.places, study.paths, seed)
        later, _ = follow(then, *windows.apart.places, late)
        scores["later"] = _apart(table_of(later), windows.apart)
    return scores | {
        "used": fitted.shape.marginals,
        "views": {view: s["check_score"] for view, s in views.items()},
        "views_80": {view: s["coverage_80"] for view, s in views.items()},
        "raw": {name: raw[name] for name in RAW},
        "fixed": {name: fixed[name] for name in RAW},
        "energy": path_energy(paths[some], truth[some]),
        "rolled_energy": path_energy(rolled[some], truth[some]),
        "sample_seconds": round(drawing, 1),
        "trained_steps": fitted.history.steps[-1],
        "bands": _bands(table, truth, windows),
    }


def _apart(table: Array, windows: Windows) -> Record:
    scores = score_table(table, windows.truth(), windows.index)
    return {name: scores[name] for name in APART}


# What is kept of the scores of windows apart, and of those before recalibration.
APART = ("nd", "rmse", "check_score", "coverage_80")
RAW = ("nd", "rmse", "check_score", "coverage_50", "coverage_80", "coverage_90", "by_step")


def _naive(back: Callable[[Study], Sequence[int]]) -> Callable[..., Record]:
    """The median of the values so many seasons ago."""

    def run(study: Study, windows: Windows, seed: int) -> Record:
        scores = []
        for part in [windows, *([windows.apart] if windows.apart else [])]:
            shifts = np.stack([part.truth(lag) for lag in back(study)])
            with warnings.catch_warnings():  # of a step that was always missing
                warnings.simplefilter("ignore", RuntimeWarning)
                usual = np.nanmedian(shifts, axis=0)
            truth = part.truth()
            scores.append(score_points(usual, np.where(np.isnan(usual), np.nan, truth)))
        return scores[0] | ({"later": scores[1]} if windows.apart else {})

    return run


def _gluonts(study: Study, windows: Windows, seed: int) -> Record:
    began = time.process_time()
    training = study.training(windows.data)
    draw = fit_gluonts(training, study.horizon, study.context, study.steps, seed)
    seconds = time.process_time() - began
    began = time.process_time()
    paths = draw(*windows.places, study.paths)
    drawing = time.process_time() - began
    truth, some = windows.truth(), windows.some(PATH_WINDOWS)
    scores = score_table(table_of(paths), truth, windows.index)
    if windows.apart is not None:
        later = draw(*windows.apart.places, study.paths)
        scores["later"] = _apart(table_of(later), windows.apart)
    return scores | {
        "raw": {name: scores[name] for name in RAW},
        "energy": path_energy(paths[some], truth[some]),
        "fit_seconds": round(seconds, 1),
        "sample_seconds": round(drawing, 1),
    }


def frequency_of(data: TimeSeries) -> Frequency:
    """The frequency of a data set."""
    return read_series(data.frame.iloc[:, :1]).frequency


def _days(study: Study) -> int:
    """Steps of a season, at least the horizon: a forecast knows nothing younger."""
    season = frequency_of(study.data).season
    return season * -(-study.horizon // season)


METHODS: dict[str, ForecastMethod] = {
    m.name: m
    for m in (
        ForecastMethod("aqf", "AQF", "quantile flow, spline", _network(QuantileFlowForecaster)),
        ForecastMethod("deepar", "DeepAR", "Gaussian, likelihood", _network(DeepARForecaster)),
        ForecastMethod(
            "deepar-t",
            "DeepAR, Student's t",
            "Student's t, likelihood",
            _network(DeepARForecaster, distribution="student-t"),
        ),
        ForecastMethod(
            "mqrnn", "MQ-RNN", "five quantiles, pinball loss", _network(MQRNNForecaster)
        ),
        ForecastMethod(
            "gluonts",
            "GluonTS DeepAR",
            "Student's t, its own lags and features, equal LSTM and steps",
            _gluonts,
            package="gluonts",
        ),
        ForecastMethod(
            "seasonal-naive",
            "one day before",
            "the value a season ago (24 h)",
            _naive(lambda s: [_days(s)]),
            seeded=False,
        ),
        ForecastMethod(
            "weekly-naive",
            "one week before",
            "the value seven seasons ago (168 h)",
            _naive(lambda s: [7 * _days(s)]),
            seeded=False,
        ),
        ForecastMethod(
            "median-naive",
            "median of 7 days",
            "the median of the values one to seven seasons ago",
            _naive(lambda s: [k * _days(s) for k in range(1, 8)]),
            seeded=False,
        ),
    )
}
NAIVE = ("seasonal-naive", "weekly-naive", "median-naive")


def choose_forecasters(names: Sequence[str]) -> tuple[list[ForecastMethod], list[str]]:
    """The methods with these names and the naive ones, and the packages that are not installed.

    Example:
        >>> [m.name for m in choose_forecasters(["aqf"])[0]]
        ['aqf', 'seasonal-naive', 'weekly-naive', 'median-naive']
    """
    chosen = [lookup(name, METHODS, "method") for name in dict.fromkeys([*names, *NAIVE])]
    absent = [m.package for m in chosen if m.package and util.find_spec(m.package) is None]
    return [m for m in chosen if m.package not in absent or m.package is None], absent


def jobs_for(study: Study, methods: Sequence[ForecastMethod], seeds: Sequence[int]) -> list[Job]:
    """A job for each method and seed; naive methods have one."""
    windows = Windows.of(study)
    jobs = []
    for seed in seeds:
        for method in methods:
            if not method.seeded and seed != seeds[0]:
                continue
            key = study.key | {"method": method.name, "seed": seed if method.seeded else 0}
            jobs.append(Job(key, _Work(study, method, windows, seed), "nd"))
    return jobs


@dataclass(frozen=True)
class _Work:
    study: Study
    method: ForecastMethod
    windows: Windows
    seed: int

    def __call__(self) -> Record:
        size = {"series": len(self.windows.data), "test_windows": len(self.windows.index)}
        return size | self.method.run(self.study, self.windows, self.seed)


def _bands(table: Array, truth: Array, windows: Windows) -> list[Record]:
    """Quantiles .1, .5 and .9 and the truth of a few windows, for the figure."""
    data = windows.data
    size = np.argsort([np.nanmean(np.abs(v)) for v in data.values])
    shares = np.linspace(0.25, 0.9, SHOWN_SERIES)
    bands = []
    for i in dict.fromkeys(size[(shares * (len(size) - 1)).round().astype(int)].tolist()):
        rows = np.flatnonzero(windows.index == i)[:SHOWN_WINDOWS]
        low, mid, high = table[rows].reshape(-1, len(LEVELS))[:, [19, 99, 179]].T
        parts = {"low": low, "mid": mid, "high": high, "truth": truth[rows].reshape(-1)}
        bands.append(
            {"series": str(data.names[i])}
            | {k: [float(f"{x:.5g}") for x in v] for k, v in parts.items()}
        )
    return bands
