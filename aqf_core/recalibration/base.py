"""What all recalibration maps share, and the distribution seen through one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..distributions import ScalarPredictive
from ..errors import AQFError, DomainError, ShapeError
from ..normal import base_to_level, level_to_base, log_density
from ..validation import check_finite, check_levels, paired_shape
from ..wrapping import as_predictive

__all__ = ["RecalibratedPredictive", "Recalibration"]


class Recalibration(ABC):
    """An increasing map of the base variable, fitted to held-out observations.

    Args:
        per_column: fit one map for each column of the PIT values (N, C), for example per forecast
            horizon or per box coordinate, and apply them to distributions of batch shape (..., C).
            By default all observations share one map.

    Example:
        >>> from aqf_core.recalibration import make_recalibration
        >>> recalibrate = make_recalibration("isotonic").fit(torch.linspace(0.001, 0.5, 500))
        >>> round(recalibrate.levels(torch.tensor(0.25)).item(), 2)  # y is always below the median
        0.5
    """

    has_density = True

    def __init__(self, per_column: bool = False) -> None:
        self.per_column = per_column
        self.observations = 0

    def fit(self, prediction: Any, y: Tensor | None = None) -> Recalibration:
        """Fit to held-out data and return self.

        Args:
            prediction: PIT values in [0, 1], shape (N,) or (N, C); or, with `y`, a distribution.
            y: the observations belonging to the distribution.
        """
        if isinstance(prediction, Distribution):
            if y is None:
                raise ShapeError("fit(dist, y) needs the observations y.")
            dist = as_predictive(prediction)
            paired_shape(y=check_finite(y, "y").shape, distribution=dist.batch_shape)
            z = dist.to_base(y)
        else:
            pit = torch.as_tensor(prediction)
            z = level_to_base(check_levels(pit, "pit"))
        z = check_finite(z.detach().double(), "the base value of y")
        if self.per_column and z.dim() < 2:
            raise ShapeError(f"per_column needs PIT values (N, C), got {tuple(z.shape)}.")
        z = z.reshape(-1, z.shape[-1]) if self.per_column else z.reshape(-1, 1)
        if len(z) < 2:
            raise ShapeError(f"recalibration needs at least 2 observations, got {len(z)}.")
        self.observations = len(z)
        self._fit(z.T.contiguous().sort(-1).values)
        return self

    @abstractmethod
    def _fit(self, z: Tensor) -> None:
        """Fit to sorted base values (C, N), float64."""

    @abstractmethod
    def _to_base(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """m(z) and log m'(z) of z (C, M)."""

    @abstractmethod
    def _from_base(self, w: Tensor) -> Tensor:
        """The inverse of m, of w (C, M)."""

    def to_base(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """m(z) and log m'(z), both of the shape of z: (...) or, per column, (..., C)."""
        rows, restore = self._rows(z)
        w, log_slope = self._to_base(rows)
        return restore(w), restore(log_slope)

    def from_base(self, w: Tensor) -> Tensor:
        """The inverse of m."""
        rows, restore = self._rows(w)
        return restore(self._from_base(rows))

    def bounds(self, coverage: Tensor) -> tuple[Tensor, Tensor]:
        """Ends, in z, of the central interval of the given coverage."""
        low, high = level_to_base((1 - coverage) / 2), level_to_base((1 + coverage) / 2)
        return self.from_base(low), self.from_base(high)

    def levels(self, u: Tensor) -> Tensor:
        """The recalibrated probability of predicted levels: the fitted calibration curve."""
        return base_to_level(self.to_base(level_to_base(check_levels(u)))[0])

    def __call__(self, dist: Distribution) -> RecalibratedPredictive:
        """The recalibrated distribution."""
        return RecalibratedPredictive(as_predictive(dist), self)

    @abstractmethod
    def _columns(self) -> int:
        """Number C of fitted maps."""

    def _rows(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Reshape (..., C) to (C, M), and the function that undoes it."""
        if not self.observations:
            raise AQFError("this recalibration is not fitted yet; call fit(pit) or fit(dist, y).")
        if not self.per_column:
            return x.reshape(1, -1), lambda r: r.reshape(x.shape)
        columns = self._columns()
        if x.dim() == 0 or x.shape[-1] not in (1, columns):
            raise ShapeError(
                f"one map for each of {columns} columns was fitted, got shape {tuple(x.shape)}."
            )
        x = x.expand(*x.shape[:-1], columns)
        flat = x.reshape(-1, columns).T.contiguous()
        return flat, lambda r: r.T.reshape(x.shape)


class RecalibratedPredictive(ScalarPredictive):
    """A predictive distribution seen through a recalibration map.

    Args:
        base: the distribution to repair.
        recalibration: a fitted map.

    Example:
        >>> from aqf_core.recalibration import IsotonicRecalibration
        >>> narrow = as_predictive(torch.distributions.Normal(torch.zeros(999), 0.5))
        >>> y = torch.special.ndtri(torch.arange(1, 1000) / 1000)  # standard normal observations
        >>> repaired = IsotonicRecalibration().fit(narrow, y)(narrow)
        >>> round(repaired.interval(0.9)[1][0].item(), 2)
        1.64
    """

    def __init__(self, base: ScalarPredictive, recalibration: Recalibration) -> None:
        self.base, self.recalibration = base, recalibration
        super().__init__(
            base.batch_shape,
            dtype=base.dtype,
            device=base.device,
            validate_args=base._validate_args,
        )

    @property
    def support(self) -> constraints.Constraint:
        return self.base.support

    def from_base(self, z: Tensor) -> Tensor:
        return self.base.from_base(self.recalibration.from_base(self._broadcast(z)))

    def to_base(self, x: Tensor) -> Tensor:
        return self.recalibration.to_base(self.base.to_base(self._broadcast(x)))[0]

    def _icdf(self, u: Tensor) -> Tensor:
        return self.from_base(level_to_base(u))

    def _cdf(self, x: Tensor) -> Tensor:
        return base_to_level(self.to_base(x))

    def _log_prob(self, x: Tensor) -> Tensor:
        if not self.recalibration.has_density:
            raise DomainError(
                f"{type(self.recalibration).__name__} gives a step function, which has no density; "
                "recalibrate with 'isotonic' or 'spline' if you need one."
            )
        z = self.base.to_base(x)
        w, log_slope = self.recalibration.to_base(z)
        return self.base.log_prob(x) + log_density(w) - log_density(z) + log_slope

    def interval(self, coverage: float | Tensor) -> tuple[Tensor, Tensor]:
        c = check_levels(self._as_value(coverage), "coverage")
        low, high = self.recalibration.bounds(self._broadcast(c))
        return self.base.from_base(low), self.base.from_base(high)

    def __repr__(self) -> str:
        return f"RecalibratedPredictive({self.base}, {type(self.recalibration).__name__})"
