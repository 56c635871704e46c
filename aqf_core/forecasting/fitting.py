"""From checked series to a trained, recalibrated network, and paths drawn from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import LevelError
from ..levels import fixed_levels
from ..normal import level_to_base
from ..progress import progress_bar
from ..recalibration import Recalibration
from .calibration import repair_paths
from .errors import SeriesError
from .following import LevelMap, follow
from .forecast import path_quantiles
from .held_out import choose_marginals, held_forecasts, recalibrate
from .network import ForecastNetwork
from .outputs import make_output
from .sampling import direct_quantiles, sample_paths
from .series import SeriesSet
from .settings import Settings
from .training import History, Plan, steps_per_process, train
from .windows import Batch, Index, WindowShape, WindowSource, months_seen

if TYPE_CHECKING:
    from .forecaster import Forecaster

__all__ = ["Fitted", "build_network", "check_series", "fit_network", "validation_steps"]

EVALUATIONS = 40
# Share of training windows whose horizon is forecast at once, the others step by step.
BLIND = 0.5
# Windows read at once when paths are drawn.
CHUNK = 256
# Held-out windows per series, or more of them until there are enough for recalibration.
VALIDATION_WINDOWS = 14
RECALIBRATION_ENOUGH = 1000
# The highest learning rate of the last part of training, relative to that of the first.
REFIT_RATE = 0.3

Moments = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass
class Fitted:
    """A trained network and everything needed to forecast with it.

    Attributes:
        network: in evaluation mode.
        shape: of its windows.
        names: number of the embedding of each known series.
        moments: mean and standard deviation of the covariates, None without any.
        support: bounds of the values.
        recalibration: one map per step of the horizon, or None.
        data: the series to go on from.
        history: of the training.
        device: where the network is.
        stretch: (2, H), see `following`; None until something has come true after training.
        checked: steps of each series in `data` up to which forecasts were compared with what came
            true; None for all.
    """

    network: ForecastNetwork
    shape: WindowShape
    names: dict[Any, int]
    moments: Moments | None
    support: tuple[float, float] | None
    recalibration: Recalibration | None
    data: SeriesSet
    history: History
    device: torch.device
    stretch: Tensor | None = None
    checked: Index | None = None

    def source(self, data: SeriesSet) -> WindowSource:
        """Windows of series, known or not."""
        ids = [self.names.get(name, self.shape.unknown) for name in data.names]
        return WindowSource(data, self.shape, ids, self.moments)

    def quantiles(
        self,
        data: SeriesSet,
        index: Index,
        origins: Index,
        levels: Any,
        n: int,
        seed: int,
    ) -> NDArray[np.float64]:
        """Quantiles (W, H, K) of the windows with these series and origins, at levels (K,).

        Args:
            data: the series.
            index: number of the series of each window.
            origins: of the windows.
            levels: strictly inside (0, 1).
            n: paths that are drawn, unless the marginals are direct.
            seed: of these paths.
        """  # fmt: skip
        u = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        if u.ndim != 1 or not ((u > 0) & (u < 1)).all():
            raise LevelError(f"levels must lie strictly between 0 and 1, got {levels}.")
        if self.shape.marginals != "direct":
            paths = self.sample(data, index, origins, n, seed)
            return path_quantiles(paths, u)
        z = self._repaired(level_to_base(torch.from_numpy(u)))
        parts = [
            direct_quantiles(self.network, batch, self.shape, z, self.support)
            for batch in self._batches(data, index, origins)
        ]
        return torch.cat(parts).movedim(1, -1).double().cpu().numpy()

    def sample(
        self, data: SeriesSet, index: Index, origins: Index, n: int, seed: int
    ) -> NDArray[np.float64]:
        """Joint paths (W, n, H) of the windows with these series and origins.

        The ranks of the paths at each step are those of rolled-out ones. Their values are, at
        these ranks, the quantiles over the rolled-out paths, those of the step by itself, or the
        mean of both; see `Settings.marginals`.
        """
        generator = torch.Generator(device=self.device).manual_seed(seed)
        z = self._repaired(level_to_base(fixed_levels(n, dtype=torch.float64)))
        parts = []
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for batch in self._batches(data, index, origins):
                rolled = sample_paths(self.network, batch, self.shape, n, generator, self.support)
                parts.append(self._values(batch, rolled, z).double().cpu().numpy())
        return np.concatenate(parts)

    def _values(self, batch: Batch, rolled: Tensor, z: Tensor) -> Tensor:
        """Final values of rolled-out paths (B, n, H); z (n, H): base values of their ranks."""
        paths = rolled
        if self.shape.marginals != "direct" and self.recalibration is not None:
            paths = repair_paths(rolled, LevelMap(self.recalibration, self.stretch))
        if self.shape.marginals != "rolled":
            values = direct_quantiles(self.network, batch, self.shape, z, self.support)
            order = rolled.movedim(1, -1).argsort(-1)  # (B, H, n)
            direct = torch.empty_like(order, dtype=values.dtype)
            direct = direct.scatter_(-1, order, values.movedim(1, -1)).movedim(-1, 1)
            paths = direct if self.shape.marginals == "direct" else 0.5 * (paths + direct)
        return paths if self.support is None else paths.clamp(*self.support)

    def rolled_out(
        self, data: SeriesSet, index: Index, origins: Index, n: int, seed: int
    ) -> NDArray[np.float64]:
        """Paths (W, n, H) as they come from the network, without anything done to them."""
        bare = self.seen_as("rolled").raw()
        return bare.sample(data, index, origins, n, seed)

    def finish(
        self,
        data: SeriesSet,
        index: Index,
        origins: Index,
        rolled: NDArray[np.float64],
        source: WindowSource | None = None,
    ) -> NDArray[np.float64]:
        """What `sample` makes of paths (W, n, H) of `rolled_out`; `source`: windows of the data, if
        they are at hand."""
        z = self._repaired(level_to_base(fixed_levels(rolled.shape[1], dtype=torch.float64)))
        done, parts = 0, []
        for batch in self._batches(data, index, origins, source):
            some = torch.from_numpy(rolled[done : done + len(batch.scale)])
            done += len(some)
            parts.append(self._values(batch, some.to(batch.scale), z).double().cpu().numpy())
        return np.concatenate(parts)

    def seen_as(self, marginals: str) -> Fitted:
        """The same with other marginals, see `Settings`."""
        return replace(self, shape=replace(self.shape, marginals=marginals))

    def raw(self) -> Fitted:
        """The same without recalibration."""
        return replace(self, recalibration=None, stretch=None)

    def update(self, data: SeriesSet, n: int, seed: int) -> None:
        """Go on with longer series, and learn from forecasts that have come true since.

        Args:
            data: the series so far with new values at their end.
            n: paths per forecast.
            seed: of the paths.
        """
        old, horizon = self.data, self.shape.horizon
        checked = old.lengths if self.checked is None else self.checked
        before = {name: i for i, name in enumerate(old.names)}
        done = data.lengths.copy()
        index, origins = [], []
        for i, name in enumerate(data.names):
            if name not in before:
                continue
            k = before[name]
            if data.starts[i] != old.starts[k] or data.lengths[i] < old.lengths[k]:
                raise SeriesError(
                    f"{data.label(i)} must begin where it began before and not be shorter; pass "
                    "its whole history with the new values at its end."
                )
            due = np.arange(checked[k], data.lengths[i] - horizon + 1, horizon)
            done[i] = checked[k] + horizon * len(due)
            index.append(np.full(len(due), i))
            origins.append(due)
        nothing = np.zeros(0, np.int64)
        where, when = np.concatenate([*index, nothing]), np.concatenate([*origins, nothing])
        if len(where) and self.recalibration is not None:
            rolled = self.rolled_out(data, where, when, n, seed)
            self.stretch = follow(self, data, where, when, rolled)[1].stretch
        self.data, self.checked = data, done

    def _repaired(self, z: Tensor) -> Tensor:
        """Base values (K, H) at which to evaluate the quantile functions of the steps."""
        z = z[:, None].expand(-1, self.shape.horizon)
        return LevelMap(self.recalibration, self.stretch).from_base(z)

    def _batches(
        self, data: SeriesSet, index: Index, origins: Index, source: WindowSource | None = None
    ) -> Iterator[Batch]:
        self._check(data, index, origins)
        source = source or self.source(data)
        for i in range(0, len(index), CHUNK):
            part = slice(i, i + CHUNK)
            yield source.batch(index[part], origins[part], blind=True).to(self.device)

    def _check(self, data: SeriesSet, index: Index, origins: Index) -> None:
        """Refuse windows without history or without the covariates that training had."""
        if (data.covariates is None) != (self.moments is None):
            raise SeriesError(
                "the model was fitted with covariates; pass covariates for these series, too."
                if data.covariates is None
                else "the model was fitted without covariates; do not pass any."
            )
        if data.covariates is not None and self.moments is not None:
            if data.covariates[0].shape[1] != len(self.moments[0]):
                raise SeriesError(
                    f"the model was fitted with {len(self.moments[0])} covariates, got "
                    f"{data.covariates[0].shape[1]}."
                )
            for i, origin in zip(index, origins, strict=True):
                need, have = int(origin) + self.shape.horizon, len(data.covariates[i])
                if have < need:
                    raise SeriesError(
                        f"the covariates of {data.label(i)} have {have} steps and do not cover the "
                        f"horizon; {need} steps are needed."
                    )
        context = self.shape.context
        for i, origin in zip(index, origins, strict=True):
            recent = data.values[i][max(0, int(origin) - context) : int(origin)]
            if np.isnan(recent).all():
                raise SeriesError(
                    f"{data.label(i)} has no observation in the {context} steps before the "
                    "forecast (a block of NaN); fill it or leave the series out."
                )


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
            f"no series is long enough for a context, a horizon of {horizon} and {validation} "
            "held-out steps; choose a smaller horizon or validation."
        )
    weights = scales**settings.weighting
    held = _held_windows(data, validation, horizon)
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
        fitted.recalibration = recalibrate(fitted.shape.marginals, settings.recalibrate, forecasts)
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


def validation_steps(settings: Settings, data: SeriesSet, horizon: int) -> int:
    """Steps held out at the end of every series: a multiple of the horizon, 0 for short ones."""
    shortest = int(data.lengths.min())
    if settings.validation is not None:
        if shortest - settings.validation <= horizon:
            raise SeriesError(
                f"validation of {settings.validation} steps leaves too little of a series of "
                f"{shortest} steps; choose less than {max(0, shortest - horizon)}."
            )
        return settings.validation // horizon * horizon
    wanted = max(VALIDATION_WINDOWS, math.ceil(RECALIBRATION_ENOUGH / len(data)))
    return min(wanted, shortest // 4 // horizon) * horizon


def _shape(settings: Settings, data: SeriesSet, horizon: int, marginals: str) -> WindowShape:
    longest = int(data.lengths.max())
    lags = settings.lags
    if lags is None:
        # A lag that most of a series does not have says nothing.
        lags = tuple(lag for lag in data.frequency.lags() if lag <= longest // 3)
    context = settings.context or data.frequency.context()
    return WindowShape(
        context=max(1, min(context, longest - horizon)),
        horizon=horizon,
        lags=lags,
        season=max(1, min(data.frequency.season, longest // 2)),
        calendar=settings.calendar,
        months=months_seen(data),
        offset=settings.offset,
        unknown=len(data),
        marginals=marginals,
    )


def _moments(data: SeriesSet) -> Moments | None:
    if data.covariates is None:
        return None
    rows = np.concatenate([c[: len(v)] for c, v in zip(data.covariates, data.values, strict=True)])
    spread = rows.std(0)
    return rows.mean(0), np.where(spread > 0, spread, 1.0)


def _held_windows(data: SeriesSet, validation: int, horizon: int) -> tuple[Index, Index]:
    """Series and origins of windows that follow each other through the held-out steps."""
    back = np.arange(validation, 0, -horizon)
    index = np.repeat(np.arange(len(data)), len(back))
    return index, (data.lengths[:, None] - back).reshape(-1)


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
