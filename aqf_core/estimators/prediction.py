"""Predictions of an estimator: lazy, in the units of the data, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..distributions import ScalarPredictive
from ..errors import LevelError, ShapeError
from ..losses import interpolated_crps, interpolation_levels
from ..normal import base_to_level, level_to_base, log_density
from ..recalibration import RecalibratedPredictive, Recalibration
from .model import BagModel

__all__ = ["Fitted", "JointPrediction", "Prediction"]

Array = NDArray[np.float64]

# Rows evaluated together: enough to amortise the launching of operations, few enough for caches.
CHUNK = 512


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

    def predict(self, rows: Tensor) -> Prediction:
        """The prediction for standardised rows (n, p)."""
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
        """Quantiles at the levels (K,): shape (n, K), or (n, d, K); a number gives (n,)."""
        u = check_probabilities(levels)
        values = self._collect(lambda dist, _: self._quantiles(dist, u))
        values = values * self._fitted.scale[..., None] + self._fitted.loc[..., None]
        return values[..., 0] if np.ndim(levels) == 0 else values

    def interval(self, coverage: float = 0.9) -> Array:
        """Central interval: (n, 2), or (n, d, 2), the low end first."""
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
        return self._at(y, self._crps) * self._fitted.scale + np.abs(self._beyond(y))

    def _crps(self, dist: ScalarPredictive, value: Tensor) -> Tensor:
        if not isinstance(dist, RecalibratedPredictive):
            return dist.crps(value)
        levels = interpolation_levels(256, dtype=dist.dtype, device=dist.device)
        return interpolated_crps(levels, self._quantiles(dist, levels), value)

    def sample(self, n: int = 1, random_state: int | None = None) -> Array:
        """Draw n values for each row: (n_rows, n), or (n_rows, n, d) for several targets."""
        with self._seeded(random_state):
            draws = self._collect(lambda dist, _: dist.sample(torch.Size([n])).movedim(0, 1))
        return self._fitted.loc + self._fitted.scale * draws

    # How it is computed -------------------------------------------------------------------------

    def _seeded(self, random_state: int | None) -> Any:
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

    def _distribution(self, rows: Tensor) -> ScalarPredictive:
        """The pooled distribution, before recalibration, in standardised units."""
        model = self._fitted.model
        like = model.space.loc
        return model.marginals(model.encoding(rows.to(like)))

    def _final(self, rows: Tensor) -> ScalarPredictive:
        dist = self._distribution(rows)
        recalibration = self._fitted.recalibration
        return dist if recalibration is None else RecalibratedPredictive(dist, recalibration)

    def _quantiles(self, dist: ScalarPredictive, levels: Tensor) -> Tensor:
        levels = levels.to(dist.device, dist.dtype)
        if isinstance(dist, RecalibratedPredictive) and not dist.recalibration.per_column:
            # One map for all rows: it moves the levels, and many levels at once are faster.
            levels = base_to_level(dist.recalibration.from_base(level_to_base(levels)))
            dist = dist.base
        return dist.quantiles(levels)

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

    @torch.no_grad()
    def _collect(self, compute: Callable[[ScalarPredictive, slice], Tensor]) -> Array:
        parts = [compute(self._final(self._rows[s]), s).cpu() for s in self._slices()]
        return torch.cat(parts).double().numpy() if len(parts) > 1 else parts[0].double().numpy()

    def _slices(self) -> Iterator[slice]:
        for start in range(0, max(1, len(self)), CHUNK):
            yield slice(start, start + CHUNK)

    def _at(self, y: Any, compute: Callable[[ScalarPredictive, Tensor], Tensor]) -> Array:
        """A function of distributions and values, for y of any of the shapes of `cdf`."""
        values, several = self._values(y)

        def run(dist: ScalarPredictive, part: slice) -> Tensor:
            v = values[part].to(dist.device, dist.dtype)
            if not several:
                return compute(dist, v)
            return compute(dist, v.movedim(-1, 0)).movedim(0, -1)

        return self._collect(run)

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


class JointPrediction(Prediction):
    """Joint distributions of several targets.

    Samples and the density are exact. Whatever concerns one target alone (quantiles, intervals,
    cdf, moments, CRPS) is computed from `DRAWS` quasi-random samples per row, the same for every
    row, so that it does not change from call to call.
    """

    DRAWS = 1024

    def _members(self, rows: Tensor, z: Tensor, pick: Tensor) -> Tensor:
        """Values (S, n, d) of base points z (S, 1 or n, d); sample s comes from member pick[s]."""
        model, recalibration = self._fitted.model, self._fitted.recalibration
        context = model.encoding(rows.to(model.space.loc)).unsqueeze(0)
        if recalibration is not None:
            z = recalibration.from_base(z)
        out = z.new_empty(len(z), len(rows), z.shape[-1])
        for k in range(model.members):
            own = pick == k
            if bool(own.any()):
                base = z[own].unsqueeze(1).expand(-1, 1, len(rows), -1)
                out[own] = model.flow(k).from_base(base, context).squeeze(1)
        return out

    def _final(self, rows: Tensor) -> ScalarPredictive:
        model = self._fitted.model
        z = _quasi_normal(self.DRAWS, model.outputs or 1).to(model.space.loc).unsqueeze(1)
        pick = torch.arange(self.DRAWS) % model.members
        # Neighbours in the sequence go to different members; shuffle so that no pattern remains.
        pick = pick[torch.randperm(self.DRAWS, generator=torch.Generator().manual_seed(1))]
        return SampledPredictive(self._members(rows, z, pick))

    def sample(self, n: int = 1, random_state: int | None = None) -> Array:
        model = self._fitted.model
        like = model.space.loc
        parts = []
        with self._seeded(random_state), torch.no_grad():
            for part in self._slices():
                rows = self._rows[part]
                z = torch.randn(n, len(rows), model.outputs or 1).to(like)
                pick = torch.randint(model.members, (n,))
                parts.append(self._members(rows, z, pick).movedim(0, 1).cpu())
        draws: Array = torch.cat(parts).double().numpy()
        return self._fitted.loc + self._fitted.scale * draws

    @torch.no_grad()
    def log_pdf(self, y: Any) -> Array:
        """Logarithm of the joint density at y (n, d): shape (n,)."""
        model, recalibration = self._fitted.model, self._fitted.recalibration
        values, _ = self._values(y)
        parts = []
        for part in self._slices():
            like = model.space.loc
            context = model.encoding(self._rows[part].to(like)).unsqueeze(0)
            v = values[part].to(like).unsqueeze(0)
            each = []
            for k in range(model.members):
                flow = model.flow(k)
                log_prob = flow.log_prob(v, context)
                if recalibration is not None:
                    z = flow.to_base(v, context)
                    w, log_slope = recalibration.to_base(z)
                    log_prob = log_prob + (log_density(w) - log_density(z) + log_slope).sum(-1)
                each.append(log_prob.squeeze(0))
            stacked = torch.stack(each)
            parts.append(torch.logsumexp(stacked, 0).cpu() - np.log(len(each)))
        log_pdf: Array = torch.cat(parts).double().numpy() - np.log(self._fitted.scale).sum()
        inside = np.broadcast_to(self._beyond(y) == 0, values.shape).all(-1)
        return np.where(inside, log_pdf, -np.inf)

    def event(self, below: Any = None, above: Any = None) -> Array:
        """P(above_j < Y_j <= below_j for every target j): shape (n,)."""
        if below is None and above is None:
            raise ValueError("say which event: below=, above=, or both.")
        top = self._values(np.inf if below is None else below)[0]
        bottom = self._values(-np.inf if above is None else above)[0]

        def run(dist: ScalarPredictive, part: slice) -> Tensor:
            assert isinstance(dist, SampledPredictive)
            draws = dist.draws
            inside = (draws <= top[part].to(draws)) & (draws > bottom[part].to(draws))
            return inside.all(-1).double().mean(0)

        return self._collect(run)

    def energy_score(self, y: Any) -> Array:
        """Energy score of the joint distribution at y (n, d), targets in their own units: (n,)."""
        from ..losses import energy_score

        values = torch.from_numpy(np.asarray(y, dtype=np.float64))
        loc, scale = torch.from_numpy(self._fitted.loc), torch.from_numpy(self._fitted.scale)

        def run(dist: ScalarPredictive, part: slice) -> Tensor:
            assert isinstance(dist, SampledPredictive)
            return energy_score(loc + scale * dist.draws.cpu(), values[part], reduction="none")

        return self._collect(run)


class SampledPredictive(ScalarPredictive):
    """Marginal distributions given by equally likely draws (S, *batch_shape)."""

    def __init__(self, draws: Tensor) -> None:
        self.draws = draws
        self.sorted = draws.sort(0).values
        super().__init__(draws.shape[1:], dtype=draws.dtype, device=draws.device)

    def quantiles(self, levels: Tensor) -> Tensor:
        # torch.quantile limits its size; midpoints (s + 1/2) / S are the levels of sorted draws.
        place = (levels * len(self.sorted) - 0.5).clamp(0, len(self.sorted) - 1)
        first = place.floor().long().clamp_max(len(self.sorted) - 2)
        share = self._outer(place - first)
        return torch.lerp(self.sorted[first], self.sorted[first + 1], share).movedim(0, -1)

    def _cdf(self, x: Tensor) -> Tensor:
        return (
            (self.draws <= x.unsqueeze(-len(self.batch_shape) - 1))
            .to(self.dtype)
            .mean(-len(self.batch_shape) - 1)
        )

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def variance(self) -> Tensor:
        return self.draws.var(0)

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        from ..losses import sample_crps

        return sample_crps(self.draws, x, reduction="none")


def _quasi_normal(n: int, d: int) -> Tensor:
    """Low-discrepancy points of N(0, I), the same at every call: (n, d)."""
    engine: Any = torch.quasirandom.SobolEngine
    u = engine(d, scramble=True, seed=0).draw(n, dtype=torch.float64)
    return level_to_base(u.clamp(0.5 / n / n, 1 - 0.5 / n / n))
