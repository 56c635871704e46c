"""Predictions of an estimator: lazy, in the units of the data, as NumPy arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..distributions import ScalarPredictive
from ..errors import LevelError, ShapeError
from ..losses import interpolated_crps, interpolation_levels
from ..normal import base_to_level, level_to_base, log_density
from ..quantile_function import QuantileDistribution
from ..recalibration import RecalibratedPredictive, Recalibration
from .model import BagModel
from .pooling import PooledPredictive

__all__ = ["Fitted", "Prediction"]

Array = NDArray[np.float64]

# Rows evaluated together: enough to amortise the launching of operations, few enough for caches.
CHUNK, CHUNK_OF_ONE = 512, 1024  # for a bag, and for one network
# More numbers than this are computed in bulk: in float32, and quantiles of a bag from tables.
BULK = 2**19
# Quantiles behind a CRPS without closed form; its relative error is 2e-5.
CRPS_LEVELS = 256


@dataclass
class Fitted:
    """A trained bag and what turns its numbers into the units of the data.

    Attributes:
        model: trained, in evaluation mode, float64.
        loc, scale: of the targets, () or (d,).
        recalibration: map of the pooled distribution's base variable, or None.
    """

    model: BagModel
    loc: Array
    scale: Array
    recalibration: Recalibration | None = None

    @cached_property
    def single(self) -> BagModel:
        """The model in float32, for predictions in bulk."""
        return copy.deepcopy(self.model).float()

    def predict(self, rows: Tensor) -> Prediction:
        """The prediction for standardised rows (n, p)."""
        from .joint_prediction import JointPrediction

        return (JointPrediction if self.model.joint else Prediction)(self, rows)


def check_probabilities(levels: Any, name: str = "level") -> Tensor:
    """Levels (K,) as a tensor; a `LevelError` unless they lie strictly between 0 and 1."""
    u = torch.as_tensor(np.asarray(levels, dtype=np.float64)).reshape(-1)
    inside = (u > 0) & (u < 1)
    if u.numel() == 0 or not bool(inside.all()):
        bad = "none was given" if u.numel() == 0 else f"{u[~inside][0].item():g} does not"
        raise LevelError(
            f"every {name} must lie strictly between 0 and 1, but {bad}; pass probabilities such "
            "as 0.9, not percentages."
        )
    return u


def _count(n: Any) -> int:
    """A number of draws as an int."""
    if not isinstance(n, Integral) or n < 0:
        raise ValueError(f"the number of draws must be a whole number of at least 0, got {n!r}.")
    return int(n)


def _fill(compute: Callable[[slice], Array], rows: int, slices: list[slice], workers: int) -> Array:
    """The results (len(slice), ...) of all slices in one array (rows, ...).

    Whole slices run in parallel, because single operations are too short.
    """
    threads = torch.get_num_threads()
    workers = min(workers, len(slices) - 1)
    try:
        if workers > 1:
            torch.set_num_threads(1)
        first = compute(slices[0])  # before the others: what is cached on first use is made once
        out = np.empty((rows, *first.shape[1:]))
        out[slices[0]] = first

        def run(s: slice) -> None:
            out[s] = compute(s)

        if workers < 2:
            for s in slices[1:]:
                run(s)
        else:
            with ThreadPoolExecutor(workers) as pool:
                for _ in pool.map(run, slices[1:]):  # raises what a slice raised
                    pass
        return out
    finally:
        torch.set_num_threads(threads)


class Prediction:
    """The predictive distributions of n rows; nothing is computed before it is asked for.

    With several targets, arrays have one more dimension for them, before that of the levels.

    Example:
        >>> from aqf_core.estimators import QuantileFlowRegressor
        >>> x = np.linspace(0, 1, 50).reshape(-1, 1)
        >>> model = QuantileFlowRegressor("fast", steps=20, random_state=0).fit(x, x[:, 0])
        >>> dist = model.predict_dist(x[:3])
        >>> dist.quantile([0.1, 0.9]).shape, dist.cdf(0.5).shape, dist.crps(x[:3, 0]).shape
        ((3, 2), (3,), (3,))
    """

    def __init__(self, fitted: Fitted, rows: Tensor) -> None:
        self._fitted = fitted
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={len(self)}, targets={self._fitted.model.outputs or 1})"

    # What users ask for -------------------------------------------------------------------------

    def quantile(self, levels: Any) -> Array:
        """Quantiles at the levels (K,): shape (n, K), or (n, d, K); a number gives (n,).

        Exact up to half a million values; more are computed in float32, and those of a bag from
        a table for each row, which misses the level by 0.001 to 0.004 on average.
        """
        u = check_probabilities(levels)
        bulk = len(self) * len(u) > BULK
        fitted = self._fitted
        loc, scale = torch.tensor(fitted.loc[..., None]), torch.tensor(fitted.scale[..., None])

        def part(dist: ScalarPredictive, _: slice) -> Tensor:
            # In the units of the data while the slice is in the cache.
            return self._quantiles(dist, u, bulk).cpu().double() * scale + loc

        values = self._collect(part, bulk)
        return values[..., 0] if np.ndim(levels) == 0 else values

    def interval(self, coverage: float = 0.9) -> Array:
        """Central interval: (n, 2), or (n, d, 2), the low end first."""
        if np.ndim(coverage):
            raise LevelError(f"coverage must be one number such as 0.9, got {coverage!r}.")
        c = check_probabilities(coverage, "coverage").item()
        return self.quantile([(1 - c) / 2, (1 + c) / 2])

    @property
    def median(self) -> Array:
        """Shape (n,) or (n, d)."""
        return self.quantile(0.5)

    @property
    def mean(self) -> Array:
        """Shape (n,) or (n, d)."""
        values = self._collect(lambda dist, _: self._moments(dist)[0])
        return self._fitted.loc + self._fitted.scale * values

    @property
    def std(self) -> Array:
        """Standard deviation, shape (n,) or (n, d)."""
        variance = self._collect(lambda dist, _: self._moments(dist)[1])
        return self._fitted.scale * np.sqrt(np.maximum(variance, 0.0))

    def cdf(self, y: Any) -> Array:
        """P(Y <= y): y is a number, one value per row, or (n, M) for M values per row."""
        values = self._at(y, lambda dist, value: dist.cdf(value))
        return np.where(self._beyond(y) < 0, 0.0, np.where(self._beyond(y) > 0, 1.0, values))

    def log_pdf(self, y: Any) -> Array:
        """Logarithm of the density at y, which has a shape as for `cdf`."""
        values = self._at(y, lambda dist, value: dist.log_prob(value)) - np.log(self._fitted.scale)
        return np.where(self._beyond(y) == 0, values, -np.inf)

    def pdf(self, y: Any) -> Array:
        """Density at y, which has a shape as for `cdf`."""
        return np.exp(self.log_pdf(y))

    def event(self, below: Any = None, above: Any = None) -> Array:
        """P(above < Y <= below); leave one out for a half-line. Shape (n,) or (n, d)."""
        if below is None and above is None:
            raise ValueError("say which event: below=, above=, or both.")
        up = 1.0 if below is None else self.cdf(below)
        down = 0.0 if above is None else self.cdf(above)
        return np.maximum(up - down, 0.0)

    def crps(self, y: Any) -> Array:
        """Continuous ranked probability score of each observation (n,), or (n, d)."""
        self._check_rows(y)
        bulk = len(self) * CRPS_LEVELS > BULK
        crps = self._at(y, lambda dist, value: self._crps(dist, value, bulk), bulk)
        return crps * self._fitted.scale + np.abs(self._beyond(y))

    def _crps(self, dist: ScalarPredictive, value: Tensor, bulk: bool) -> Tensor:
        if not isinstance(dist, (RecalibratedPredictive, PooledPredictive)):
            return dist.crps(value)
        levels = interpolation_levels(CRPS_LEVELS, dtype=torch.float64, device=dist.device)
        quantiles = self._quantiles(dist, levels, bulk).double()
        return interpolated_crps(levels, quantiles, value.double())

    def sample(self, n: int = 1, random_state: Any = None) -> Array:
        """Draw n values for each row: (n_rows, n), or (n_rows, n, d) for several targets.

        Args:
            n: number of draws.
            random_state: a seed, a NumPy generator, or None for torch's own state.
        """
        n = _count(n)
        with self._seeded(random_state):
            draws = self._collect(lambda dist, _: dist.sample(torch.Size([n])).movedim(0, 1))
        return self._fitted.loc + self._fitted.scale * draws

    # How it is computed -------------------------------------------------------------------------

    def _seeded(self, random_state: Any) -> Any:
        if isinstance(random_state, np.random.RandomState):
            random_state = int(random_state.randint(2**31 - 1))
        elif isinstance(random_state, np.random.Generator):
            random_state = int(random_state.integers(2**31 - 1))
        fork = torch.random.fork_rng(enabled=random_state is not None)
        if random_state is None:
            return fork

        class Seeded:
            def __enter__(self) -> None:
                fork.__enter__()
                torch.manual_seed(random_state)

            def __exit__(self, *error: Any) -> None:
                fork.__exit__(*error)

        return Seeded()

    def _final(self, rows: Tensor, bulk: bool = False) -> ScalarPredictive:
        """The distribution in standardised units."""
        model = self._fitted.single if bulk else self._fitted.model
        dist = model.marginals(model.encoding(rows.to(model.space.loc)))
        recalibration = self._fitted.recalibration
        return dist if recalibration is None else RecalibratedPredictive(dist, recalibration)

    def _quantiles(self, dist: ScalarPredictive, levels: Tensor, bulk: bool = False) -> Tensor:
        z = level_to_base(levels.double())
        if isinstance(dist, RecalibratedPredictive):
            if dist.recalibration.per_column:
                return dist.quantiles(levels.to(dist.device, dist.dtype))
            # One map for all rows: the levels move, in float64 because 1 - u may be tiny.
            z, dist = dist.recalibration.from_base(z), dist.base
            levels = base_to_level(z)
        z = z.to(dist.device, dist.dtype)
        if isinstance(dist, PooledPredictive):
            return dist.quantiles_at(z, exact=not bulk)
        if isinstance(dist, QuantileDistribution):
            z = z.reshape(-1, *[1] * len(dist.batch_shape)).expand(-1, *dist.batch_shape)
            return dist.from_base(z).movedim(0, -1)
        return dist.quantiles(levels.to(dist.device, dist.dtype))

    def _moments(self, dist: ScalarPredictive) -> tuple[Tensor, Tensor]:
        """Mean and variance; of a recalibrated mixture by the trapezoidal rule in z."""
        if not isinstance(dist, RecalibratedPredictive):
            return dist.mean, dist.variance
        z = torch.linspace(-5.0, 5.0, 201, dtype=dist.dtype, device=dist.device)
        weight = torch.exp(log_density(z))
        weight = weight / weight.sum()
        values = self._quantiles(dist, base_to_level(z))
        mean = (values * weight).sum(-1)
        return mean, ((values - mean.unsqueeze(-1)).square() * weight).sum(-1)

    def _collect(
        self, compute: Callable[[ScalarPredictive, slice], Tensor], bulk: bool = False
    ) -> Array:
        @torch.no_grad()
        def part(s: slice) -> Array:
            return compute(self._final(self._rows[s], bulk), s).cpu().double().numpy()

        slices = list(self._slices())
        on_cpu = self._fitted.model.space.loc.device.type == "cpu"
        workers = torch.get_num_threads() if bulk and on_cpu else 1
        return _fill(part, len(self), slices, workers)

    def _slices(self) -> Iterator[slice]:
        size = CHUNK if self._fitted.model.members > 1 else CHUNK_OF_ONE
        for start in range(0, max(1, len(self)), size):
            yield slice(start, start + size)

    def _at(
        self,
        y: Any,
        compute: Callable[[ScalarPredictive, Tensor], Tensor],
        bulk: bool = False,
    ) -> Array:
        """A function of distributions and values, for y of any of the shapes of `cdf`."""
        values, several = self._values(y)

        def run(dist: ScalarPredictive, part: slice) -> Tensor:
            v = values[part].to(dist.device, dist.dtype)
            if not several:
                return compute(dist, v)
            return compute(dist, v.movedim(-1, 0)).movedim(0, -1)

        return self._collect(run, bulk)

    def _values(self, y: Any) -> tuple[Tensor, bool]:
        """Standardised values of shape (n,), (n, M), (n, d), and whether there are M per row."""
        y = np.asarray(y, dtype=np.float64)
        if np.isnan(y).any():
            raise ValueError("y contains NaN; drop these rows first.")
        shape = (len(self),) + self._fitted.loc.shape
        several = y.ndim == 2 and len(shape) == 1 and y.shape[0] == len(self)
        if several:
            shape = y.shape
        try:
            y = np.broadcast_to(y, shape)
        except ValueError:
            raise ShapeError(
                f"y of shape {y.shape} fits neither {len(self)} rows nor a single value."
            ) from None
        loc, scale = self._fitted.loc, self._fitted.scale
        space = self._fitted.model.space
        return torch.from_numpy(np.clip((y - loc) / scale, space.low, space.high)), several

    def _beyond(self, y: Any) -> Array:
        """How far y lies above the support of the targets, or below it (negative)."""
        # A model with bounds works in the units of the data.
        y, space = np.asarray(y, dtype=np.float64), self._fitted.model.space
        nearest = np.clip(y, space.low, space.high)
        return np.where(y == nearest, 0.0, y - np.where(np.isinf(nearest), 0.0, nearest))

    def _check_rows(self, y: Any) -> None:
        if np.shape(y)[:1] != (len(self),):
            raise ShapeError(
                f"crps needs one observation per row, got shape {np.shape(y)} for {len(self)} rows."
            )
