"""A trained network that forecasts: quantiles and joint paths of any windows of any series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import LevelError
from ..levels import fixed_levels
from ..normal import level_to_base
from ..recalibration import Recalibration
from .calibration import repair_paths
from .errors import SeriesError
from .following import LevelMap, follow
from .forecast import path_quantiles
from .network import ForecastNetwork
from .sampling import direct_quantiles, sample_paths
from .series import SeriesSet
from .training import History
from .windows import Batch, Index, WindowShape, WindowSource

__all__ = ["Fitted", "Moments"]

# Windows read at once when paths are drawn.
CHUNK = 256

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
        stretch: (2, H), see `following`; None until something has come true after training, or
            from held-out windows if they were too few for `recalibration`.
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
        if self.shape.marginals != "direct" and self.calibrated:
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

    @property
    def calibrated(self) -> bool:
        """Whether held-out windows changed the levels; what came true later then does, too."""
        return self.recalibration is not None or self.stretch is not None

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
        if len(where) and self.calibrated:
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
