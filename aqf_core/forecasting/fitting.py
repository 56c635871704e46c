"""From checked series to a trained, recalibrated network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..progress import progress_bar
from .calibration import FEWEST
from .errors import SeriesError
from .fitted import Fitted, Moments
from .held_out import choose_marginals, held_forecasts, recalibrate, widening
from .network import ForecastNetwork
from .outputs import make_output
from .series import SeriesSet
from .settings import Settings
from .training import Plan, steps_per_process, train
from .windows import Index, WindowShape, WindowSource, months_seen

if TYPE_CHECKING:
    from .forecaster import Forecaster

__all__ = ["build_network", "check_series", "fit_network", "validation_steps"]

EVALUATIONS = 40
# Share of training windows whose horizon is forecast at once, the others step by step.
BLIND = 0.5
# Held-out windows per series, or more of them until there are enough for recalibration.
VALIDATION_WINDOWS = 14
RECALIBRATION_ENOUGH = 1000
# The highest learning rate of the last part of training, relative to that of the first.
REFIT_RATE = 0.3
# Mean change over a season, relative to the mean size, below which windows are centred.
SMALL_CHANGE = 0.06


def fit_network(forecaster: Forecaster, data: SeriesSet) -> Fitted:
    """Train and recalibrate what a forecaster describes."""
    settings = forecaster.settings
    horizon = forecaster.horizon or data.frequency.season
    check_series(data, horizon)
    output = make_output(forecaster._output_name(), **forecaster._output_options())
    marginals = settings.marginals if output.exact else "rolled"
    shape = _shape(settings, data, horizon, marginals)
    validation = validation_steps(settings, data, horizon)
    names = {name: i for i, name in enumerate(data.names)}
    if len(names) < len(data):
        raise SeriesError("two series have the same name; rename one.")
    moments = _moments(data)
    source = WindowSource(data, shape, list(names.values()), moments)
    series, origins, scales = source.training_windows(data.lengths - validation)
    if not len(series):
        raise SeriesError(
            f"no series is long enough for a context, a horizon of {horizon} and "
            f"{int(validation.max())} held-out steps; choose a smaller horizon or validation."
        )
    weights = scales**settings.weighting
    few = int((validation // horizon).sum()) < FEWEST
    held = _held_windows(data, validation, horizon, 1 if few else horizon)
    nobody = held[0][:0], held[1][:0]
    seed = forecaster._seed(None)
    device = forecaster._torch_device()
    plan = Plan(
        steps=steps_per_process(settings.steps),
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        averaging=settings.averaging,
        evaluations=EVALUATIONS,
        patience=max(1, math.ceil(settings.patience * EVALUATIONS)),
        unknown=settings.unknown,
        blind=0.0 if marginals == "rolled" else BLIND,
        flat=settings.flat,
        seed=seed,
    )
    with torch.random.fork_rng(), progress_bar(plan.steps, forecaster.verbose) as show:
        torch.manual_seed(seed)
        network = build_network(forecaster, shape, len(data), source.n_known)
        history = train(network, source, (series, origins, weights), held, plan, device, show)
    support = _support(forecaster.support, data)
    fitted = Fitted(
        network, shape, names, moments, support, None, data, history, torch.device(device)
    )
    if marginals == "auto" or settings.recalibrate != "none":
        forecasts = held_forecasts(fitted, held, seed)
        if marginals == "auto":
            fitted = fitted.seen_as(choose_marginals(forecasts))
        kind = settings.recalibrate
        if few and kind != "none":
            fitted.stretch = widening(fitted.shape.marginals, forecasts)
        else:
            fitted.recalibration = recalibrate(fitted.shape.marginals, kind, forecasts)
    again = round(settings.refit * history.best_step)
    if again and len(held[0]) and not history.interrupted:
        rate = REFIT_RATE * plan.learning_rate
        last = replace(
            plan, steps=again, learning_rate=rate, fresh=False, one_step=0.0, seed=seed + 1
        )
        series, origins, scales = source.training_windows(data.lengths)
        weights = scales**settings.weighting
        with torch.random.fork_rng():
            torch.manual_seed(seed + 1)
            train(network, source, (series, origins, weights), nobody, last, device)
    return fitted


def build_network(
    forecaster: Forecaster, shape: WindowShape, series: int, known: int
) -> ForecastNetwork:
    """The untrained network of a forecaster."""
    settings = forecaster.settings
    output = make_output(forecaster._output_name(), **forecaster._output_options())
    return ForecastNetwork(
        output,
        series,
        shape.n_past,
        known,
        settings.hidden,
        settings.embedding,
        settings.dropout,
    )


def check_series(data: SeriesSet, horizon: int) -> None:
    """Refuse series from which nothing can be learned, in one sentence each."""
    for i, values in enumerate(data.values):
        present = values[~np.isnan(values)]
        if len(present) == 0:
            raise SeriesError(f"{data.label(i)} is missing throughout; leave it out.")
        if len(values) <= horizon:
            raise SeriesError(
                f"{data.label(i)} has {len(values)} steps, not more than the horizon of {horizon}; "
                "choose a smaller horizon or leave the series out."
            )
        if len(present) > 1 and np.ptp(present) == 0:
            raise SeriesError(
                f"{data.label(i)} is {present[0]:g} throughout; leave constant series out."
            )


def validation_steps(settings: Settings, data: SeriesSet, horizon: int) -> Index:
    """Steps (S,) held out at the end of each series: a multiple of the horizon, 0 for short ones.

    Without any held-out window nothing would tell when to stop, so of series that are all short
    one horizon is held out where it leaves as much as two to learn from.
    """
    shortest = int(data.lengths.min())
    if settings.validation is not None:
        if shortest - settings.validation <= horizon:
            raise SeriesError(
                f"validation of {settings.validation} steps leaves too little of a series of "
                f"{shortest} steps; choose less than {max(0, shortest - horizon)}."
            )
        return np.full(len(data), settings.validation // horizon * horizon)
    wanted = max(VALIDATION_WINDOWS, math.ceil(RECALIBRATION_ENOUGH / len(data)))
    windows = np.minimum(wanted, data.lengths // 4 // horizon)
    if not windows.any():
        windows = (data.lengths >= 3 * horizon).astype(np.int64)
    return np.asarray(windows * horizon, dtype=np.int64)


def _shape(settings: Settings, data: SeriesSet, horizon: int, marginals: str) -> WindowShape:
    longest = int(data.lengths.max())
    lags = settings.lags
    if lags is None:
        # A lag that most of a series does not have says nothing.
        lags = tuple(lag for lag in data.frequency.lags() if lag <= longest // 3)
    context = settings.context or data.frequency.context()
    season = max(1, min(data.frequency.season, longest // 2))
    return WindowShape(
        context=max(1, min(context, longest - horizon)),
        horizon=horizon,
        lags=lags,
        season=season,
        calendar=settings.calendar,
        months=months_seen(data),
        offset=settings.offset,
        unknown=len(data),
        marginals=marginals,
        centred=_centred(data, season) if settings.centred is None else settings.centred,
    )


def _centred(data: SeriesSet, season: int) -> bool:
    """Whether most series change little over a season, relative to their level."""
    shares = []
    for values in data.values:
        if len(values) > season:
            change = np.abs(values[season:] - values[:-season])
            if not np.isnan(change).all():
                shares.append(np.nanmean(change) / np.nanmean(np.abs(values)))
    return bool(shares) and float(np.median(shares)) < SMALL_CHANGE


def _moments(data: SeriesSet) -> Moments | None:
    if data.covariates is None:
        return None
    rows = np.concatenate([c[: len(v)] for c, v in zip(data.covariates, data.values, strict=True)])
    spread = rows.std(0)
    return rows.mean(0), np.where(spread > 0, spread, 1.0)


def _held_windows(
    data: SeriesSet, validation: Index, horizon: int, stride: int
) -> tuple[Index, Index]:
    """Series and origins of windows that follow each other through the held-out steps."""
    back = [np.arange(steps, horizon - 1, -stride) for steps in validation]
    index = np.repeat(np.arange(len(data)), [len(b) for b in back])
    return index, data.lengths[index] - np.concatenate(back)


def _support(
    given: Sequence[float | None] | str | None, data: SeriesSet
) -> tuple[float, float] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given != "auto":
            raise ValueError(f"support must be a pair of bounds, None or 'auto', got {given!r}.")
        lowest = min(float(np.nanmin(values)) for values in data.values)
        return (0.0, math.inf) if lowest >= 0 else None
    low, high = given
    bounds = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    for i, values in enumerate(data.values):
        if np.nanmin(values) < bounds[0] or np.nanmax(values) > bounds[1]:
            raise SeriesError(f"{data.label(i)} has values outside the support {bounds}.")
    return bounds
