r"""The map between data and the standardised real line on which models work.

    data x  --g-->  real line  --(. - loc) / scale-->  model y

`g` is the identity for real data and a smooth increasing bijection for bounded data:

| support        | g(x)                                                |
|----------------|-----------------------------------------------------|
| real           | x                                                   |
| (low, None)    | unit * softplus^-1((x - low) / unit)                |
| (None, high)   | -unit * softplus^-1((high - x) / unit)              |
| (low, high)    | log(x - low) - log(high - x)                        |

The inverse softplus resolves values near the bound like a logarithm and is linear far away from it,
so tails of the model stay tails of the data.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform, biject_to, constraints
from torch.nn import functional

from .errors import DomainError, ShapeError
from .validation import check_finite, check_tensor, has_values

__all__ = ["OutputSpace"]

Support = tuple[float | None, float | None]


class _AtMost(constraints.less_than):
    """A half-line with its end, which torch only has for the other side."""

    def check(self, value: Tensor) -> Tensor:
        below: Tensor = value <= self.upper_bound
        return below


@biject_to.register(_AtMost)  # type: ignore[untyped-decorator, no-untyped-call]
def _onto_at_most(constraint: _AtMost) -> Transform:
    onto: Transform = biject_to(constraints.less_than(constraint.upper_bound))  # type: ignore[no-untyped-call]
    return onto


class OutputSpace(nn.Module):
    """Invertible, monotone, element-wise map between data and model space.

    Args:
        features: number of variables in the last dimension, or None for a scalar variable (then
            data may have any shape).
        support: (low, high); None or an infinite number leaves that side unbounded. Data exactly
            on a bound are allowed (they are moved inside by a few rounding units).

    Attributes:
        loc, scale: buffers (features,), the standardisation after `g`; 0 and 1 until `fit`.
        unit: buffer (features,), the spread of the data in data units, by which losses are divided
            so that variables of different size count alike; 1 until `fit`.

    Example:
        >>> space = OutputSpace(1, support=(0.0, None))
        >>> y, log_slope = space.to_model(torch.tensor([[0.5], [3.0]]))
        >>> space.to_data(y)
        tensor([[0.5000],
                [3.0000]])
        >>> _ = OutputSpace(2).fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))  # a constant column
    """

    loc: Tensor
    scale: Tensor
    unit: Tensor

    def __init__(self, features: int | None = None, support: Support | None = None) -> None:
        super().__init__()
        if features is not None and features < 1:
            raise ShapeError(f"features must be at least 1, got {features}.")
        self.low, self.high = _bounds(support)
        self.features = features
        shape = () if features is None else (features,)
        self.register_buffer("loc", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("unit", torch.ones(shape))

    def extra_repr(self) -> str:
        return f"features={self.features}, support=({self.low:g}, {self.high:g})"

    @property
    def is_linear(self) -> bool:
        """Whether the map is affine, so that closed forms of the CRPS in model space carry over."""
        return self.low == -math.inf and self.high == math.inf

    @property
    def constraint(self) -> constraints.Constraint:
        """The support as torch states it: closed, and with a bijection from the real line.

        Example:
            >>> OutputSpace(support=(0.0, None)).constraint
            GreaterThanEq(lower_bound=0.0)
        """
        make: Any = constraints  # the constructors of torch carry no types
        if self.is_linear:
            result = make.real
        elif self.high == math.inf:
            result = make.greater_than_eq(self.low)
        elif self.low == -math.inf:
            result = _AtMost(self.high)  # type: ignore[no-untyped-call]
        else:
            result = make.interval(self.low, self.high)
        constraint: constraints.Constraint = result
        return constraint

    def to_model(self, x: Tensor, feature: int | None = None) -> tuple[Tensor, Tensor]:
        """Map data to model space.

        Args:
            x: data, shape (..., features); with `feature` given, any shape.
            feature: index of the one variable that `x` holds.

        Returns:
            y and log dy/dx, both of the shape of `x`.

        Raises:
            DomainError: when a value lies outside the support.
        """
        loc, scale, unit = self._constants(x, feature)
        self._check_domain(x)
        g, log_slope = self._unbound(x, unit)
        return (g - loc) / scale, log_slope - scale.log()

    def to_data(self, y: Tensor, feature: int | None = None) -> Tensor:
        """Map model space to data; the inverse of `to_model`.

        Args:
            y: shape (..., features); with `feature` given, any shape.
            feature: index of the one variable that `y` holds.
        """
        loc, scale, unit = self._constants(y, feature)
        return self._bound(torch.addcmul(loc, scale, y), unit)

    def of(self, feature: int) -> OutputSpace:
        """The space of one variable by itself, for data of any shape."""
        space = OutputSpace(None, (self.low, self.high))
        space.loc, space.scale, space.unit = (
            constant[feature] for constant in (self.loc, self.scale, self.unit)
        )
        return space

    @torch.no_grad()
    def fit(self, x: Tensor) -> OutputSpace:
        """Set `loc`, `scale` and `unit` from data and return self.

        The location is the median and the spread the interdecile range over 2.563 (the standard
        deviation of a Gaussian). Where that is zero, wider ranges and at last 1 take its place, so
        constant columns are safe, and up to a tenth of outliers on each side do no harm.

        Args:
            x: data, shape (..., features); any shape when `features` is None.
        """
        check_tensor(x, "x")
        columns = x.reshape(-1, 1) if self.features is None else x.reshape(-1, x.shape[-1])
        if self.features is not None and columns.shape[1] != self.features:
            raise ShapeError(f"x must have shape (..., {self.features}), got {tuple(x.shape)}.")
        if columns.shape[0] == 0:
            raise ShapeError("x is empty; standardisation needs at least one observation.")
        check_finite(columns, "x")
        self._check_domain(columns)
        shape = self.loc.shape
        columns = columns.detach().double()
        spread = _spread(columns.sort(0).values)
        self.unit.copy_(spread.reshape(shape))
        g, _ = self._unbound(columns, spread)
        # Observations on a bound would be far outliers of g: the rest sets location and scale.
        inside = (columns > self.low) & (columns < self.high)
        for j in range(columns.shape[1]):
            rows = inside[:, j] if bool(inside[:, j].any()) else slice(None)
            values = g[rows, j].sort().values.unsqueeze(1)
            index = j if self.features is not None else ()
            self.loc[index] = _order_statistic(values, 0.5)[0]
            self.scale[index] = _spread(values)[0]
        return self

    def _constants(self, x: Tensor, feature: int | None) -> tuple[Tensor, Tensor, Tensor]:
        constants = (self.loc, self.scale, self.unit)
        if feature is not None:
            constants = (self.loc[feature], self.scale[feature], self.unit[feature])
        elif self.features is not None and (x.dim() == 0 or x.shape[-1] != self.features):
            raise ShapeError(f"expected shape (..., {self.features}), got {tuple(x.shape)}.")
        loc, scale, unit = (c.to(x.dtype) for c in constants)
        return loc, scale, unit

    def _check_domain(self, x: Tensor) -> None:
        if self.is_linear or not has_values(x):
            return
        outside = (x < self.low) | (x > self.high)
        if bool(outside.any()):
            raise DomainError(
                f"{int(outside.sum())} of {x.numel()} values lie outside the support "
                f"[{self.low:g}, {self.high:g}] (for example {x[outside][0].item():g}); "
                "clip the data or widen the support."
            )

    def _unbound(self, x: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """g(x) and log g'(x)."""
        if self.is_linear:
            return x, torch.zeros_like(x)
        margin = 8 * torch.finfo(x.dtype).eps
        if self.low > -math.inf and self.high < math.inf:
            width = self.high - self.low
            below = ((x - self.low) / width).clamp(margin, 1 - margin).log()
            above = ((self.high - x) / width).clamp(margin, 1 - margin).log()
            return below - above, -below - above - math.log(width)
        sign = 1.0 if self.low > -math.inf else -1.0
        bound = self.low if self.low > -math.inf else self.high
        t = (sign * (x - bound) / unit).clamp_min(margin)
        # softplus^-1(t) = log(e^t - 1) = t + log(1 - e^-t), and its slope is 1 / (1 - e^-t).
        correction = (-torch.expm1(-t)).log()
        return sign * unit * (t + correction), -correction

    def _bound(self, g: Tensor, unit: Tensor) -> Tensor:
        """The inverse of g."""
        if self.is_linear:
            return g
        if self.low > -math.inf and self.high < math.inf:
            width = self.high - self.low
            # From the nearer bound, so that values close to either bound keep their precision.
            return torch.where(
                g < 0, self.low + width * torch.sigmoid(g), self.high - width * torch.sigmoid(-g)
            )
        if self.low > -math.inf:
            return self.low + unit * _softplus(g / unit)
        return self.high - unit * _softplus(-g / unit)


def _bounds(support: Support | None) -> tuple[float, float]:
    """The two ends of a support, infinite where it is open."""
    try:
        low, high = (None, None) if support is None else support
        ends = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    except (TypeError, ValueError):
        raise DomainError(
            f"support must be a pair (low, high), None for an open side, got {support!r}."
        ) from None
    if not ends[0] < ends[1]:
        raise DomainError(f"support needs low < high, got ({ends[0]:g}, {ends[1]:g}).")
    return ends


def _softplus(t: Tensor) -> Tensor:
    # torch turns linear above 20 by default, which is off by 2e-9 there.
    return functional.softplus(t, threshold=40.0)


def _order_statistic(sorted_columns: Tensor, level: float) -> Tensor:
    n = sorted_columns.shape[0]
    return sorted_columns[min(n - 1, int(level * n))]


def _spread(sorted_columns: Tensor) -> Tensor:
    """Robust standard deviation of each sorted column; never zero, never infinite."""
    centre = _order_statistic(sorted_columns, 0.5)
    # What is left of a constant column after rounding is not a spread.
    noise = 1e-6 * centre.abs()
    spread = torch.zeros_like(centre)
    for level, gaussian_width in ((0.1, 2.5631), (0.01, 4.6527), (0.0, 6.0)):
        width = _order_statistic(sorted_columns, 1 - level) - _order_statistic(
            sorted_columns, level
        )
        spread = torch.where(spread > 0, spread, width / gaussian_width)
        spread = torch.where(spread > noise, spread, 0.0)
    return torch.where(spread > 0, spread, 1.0)
