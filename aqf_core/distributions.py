r"""The common interface of one-dimensional predictive distributions.

Every predictive distribution is a strictly increasing map between \(z \sim N(0, 1)\) and the
variable: \(Q(u) = \mathrm{from\_base}(\Phi^{-1}(u))\). From `icdf`, `cdf` and `log_prob` the base
class derives sampling, moments, intervals, probabilities and the CRPS.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .errors import DomainError, LevelError, NonFiniteError, ShapeError
from .levels import clamp_levels
from .losses import gaussian_crps, gaussian_nll, interpolated_crps, interpolation_levels
from .normal import base_to_level, level_to_base
from .validation import as_shape, broadcast_shapes, check_levels, has_values

__all__ = ["GaussianPredictive", "ScalarPredictive"]


class ScalarPredictive(Distribution):
    r"""A batch of one-dimensional predictive distributions (event shape ()).

    Subclasses implement `_icdf(u)`, `_cdf(x)` and `_log_prob(x)`; the argument already has been
    checked and broadcast against the batch shape. They may also implement `from_base(z)` and
    `to_base(x)`, which lose no precision in the upper tail, and `_exact_crps(x)`.

    Args:
        batch_shape: shape of the batch.
        dtype, device: of the values.
        validate_args: whether values passed to `cdf` and `log_prob` are checked for NaN, the
            default. (The global default of torch is not followed, because `torch.compile` switches
            it off behind the user's back.) Levels are always checked. Nothing is checked under
            `torch.compile`, `torch.export` or `vmap`.

    Example:
        >>> dist = GaussianPredictive(torch.zeros(3), torch.ones(3))
        >>> dist.interval(0.9)
        (tensor([-1.6449, -1.6449, -1.6449]), tensor([1.6449, 1.6449, 1.6449]))
        >>> dist.prob_above(torch.tensor(1.6449))
        tensor([0.0500, 0.0500, 0.0500])
        >>> dist.sample((10,)).shape
        torch.Size([10, 3])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.dtype = dtype or torch.get_default_dtype()
        self.device = torch.device(device or "cpu")
        validate = __debug__ if validate_args is None else validate_args
        super().__init__(torch.Size(batch_shape), torch.Size(), validate_args=validate)

    # What a subclass supplies -------------------------------------------------------------------

    def _icdf(self, u: Tensor) -> Tensor:
        raise NotImplementedError

    def _cdf(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _log_prob(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        """The CRPS in closed form, or None when there is none."""
        return None

    def from_base(self, z: Tensor) -> Tensor:
        """The value at z of the increasing map whose image of N(0, 1) is this distribution."""
        return self.icdf(base_to_level(z))

    def to_base(self, x: Tensor) -> Tensor:
        """The inverse of `from_base`: z ~ N(0, 1) when x follows this distribution."""
        return level_to_base(self.cdf(x))

    def base_and_log_prob(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`to_base(x)` and `log_prob(x)`, which most families obtain in one evaluation."""
        return self.to_base(x), self.log_prob(x)

    # The public interface -----------------------------------------------------------------------

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile at level `value` in [0, 1]; broadcasts against the batch shape.

        Levels 0 and 1 give the finite quantiles of the nearest levels the dtype can represent.
        """
        u = check_levels(self._as_value(value))
        try:
            u = self._broadcast(u)
        except ShapeError as error:
            raise ShapeError(f"{error} For one set of levels call quantiles(levels).") from None
        return self._icdf(clamp_levels(u))

    def quantile(self, value: Tensor) -> Tensor:
        """Another name of `icdf`."""
        return self.icdf(value)

    def quantiles(self, levels: Tensor) -> Tensor:
        """Quantiles of every element at the same levels.

        Args:
            levels: shape (K,).

        Returns:
            Shape (*batch_shape, K).
        """
        levels = self._as_value(levels)
        if levels.dim() != 1:
            raise ShapeError(f"levels must have shape (K,), got {tuple(levels.shape)}.")
        return self.icdf(self._outer(levels)).movedim(0, -1)

    def cdf(self, value: Tensor) -> Tensor:
        """P(X <= value); broadcasts against the batch shape."""
        return self._cdf(self._check_value(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value`; broadcasts against the batch shape."""
        return self._log_prob(self._check_value(value))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Differentiable samples, shape (*sample_shape, *batch_shape)."""
        shape = self._extended_shape(torch.Size(as_shape(sample_shape, "the sample shape")))
        return self.from_base(torch.randn(shape, dtype=self.dtype, device=self.device))

    def interval(self, coverage: float | Tensor) -> tuple[Tensor, Tensor]:
        """The central interval that holds `coverage` of the probability: (low, high)."""
        c = check_levels(self._as_value(coverage), "coverage")
        return self.icdf((1 - c) / 2), self.icdf((1 + c) / 2)

    def prob_below(self, value: Tensor) -> Tensor:
        """P(X <= value)."""
        return self.cdf(value)

    def prob_above(self, value: Tensor) -> Tensor:
        """P(X > value)."""
        return 1 - self.cdf(value)

    def prob_between(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < X <= high); 0 where high < low."""
        return (self.cdf(high) - self.cdf(low)).clamp_min(0)

    @property
    def median(self) -> Tensor:
        """The quantile at level 1/2."""
        return self.icdf(self._as_value(0.5))

    @property
    def mean(self) -> Tensor:
        r"""\(\int Q(u)\,du\), by quadrature in the base space."""
        x, weight = self._base_quadrature()
        return (weight * x).sum(0).expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        r"""\(\int (Q(u) - \mathrm{mean})^2\,du\), by quadrature in the base space."""
        x, weight = self._base_quadrature()
        mean = (weight * x).sum(0)
        return (weight * (x - mean).square()).sum(0).expand(self.batch_shape)

    def entropy(self) -> Tensor:
        """Differential entropy E[-log p(X)], by quadrature in the base space."""
        x, weight = self._base_quadrature()
        return -(weight * self.log_prob(x)).sum(0).expand(self.batch_shape)

    def crps(self, value: Tensor, levels: int = 256) -> Tensor:
        r"""Continuous ranked probability score, \(2\int_0^1 \rho_u(x - Q(u))\,du\).

        In closed form where the distribution has one; otherwise the exact integral of the
        piecewise-linear interpolant of Q through `levels` knots.

        Args:
            value: observations; broadcast against the batch shape.
            levels: number of knots, at least 32; the relative error falls like levels^-2.
        """
        x = self._check_value(value)
        exact = self._exact_crps(x)
        if exact is not None:
            return exact
        if levels < 32:
            raise LevelError(f"crps needs at least 32 levels to be accurate, got {levels}.")
        u = interpolation_levels(levels, dtype=self.dtype, device=self.device)
        return interpolated_crps(u, self.quantiles(u), x)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ScalarPredictive:
        """The same distributions over a larger batch, without copying parameters."""
        shape = torch.Size(batch_shape)
        try:
            torch.empty(self.batch_shape, device="meta").expand(shape)
        except RuntimeError:
            raise ShapeError(
                f"batch shape {tuple(self.batch_shape)} does not expand to {tuple(shape)}."
            ) from None
        # Values broadcast against parameters everywhere, so only the advertised shape changes.
        new = copy.copy(self)
        new._batch_shape = shape
        return new

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)})"

    # Helpers ------------------------------------------------------------------------------------

    def _as_value(self, value: float | Tensor) -> Tensor:
        if not isinstance(value, Tensor):
            return torch.tensor(value, dtype=self.dtype, device=self.device)
        return value if value.is_floating_point() else value.to(self.dtype)

    def _broadcast(self, value: Tensor) -> Tensor:
        try:
            return value.expand(broadcast_shapes(value.shape, self.batch_shape))
        except ShapeError:
            raise ShapeError(
                f"a value of shape {tuple(value.shape)} does not broadcast with batch shape "
                f"{tuple(self.batch_shape)}."
            ) from None

    def _check_value(self, value: float | Tensor) -> Tensor:
        value = self._as_value(value)
        if self._validate_args and has_values(value) and bool(torch.isnan(value).any()):
            raise NonFiniteError("the value contains NaN; drop these observations first.")
        return self._broadcast(value)

    def _outer(self, values: Tensor) -> Tensor:
        """Reshape (K,) to (K, 1, ..., 1) so that it broadcasts against the batch shape."""
        return values.reshape(-1, *[1] * len(self.batch_shape))

    def _base_quadrature(self, nodes: int = 257) -> tuple[Tensor, Tensor]:
        """Values (nodes, *batch_shape) and weights (nodes, 1, ..., 1) of E[f(X)].

        The trapezoidal rule in z with weights proportional to the Gaussian density converges
        exponentially for smooth maps, and the tails are cut only where the dtype ends.
        """
        last = torch.tensor(1 - torch.finfo(self.dtype).eps / 2, dtype=torch.float64)
        end = torch.special.ndtri(last).item()
        z = torch.linspace(-end, end, nodes, dtype=self.dtype, device=self.device)
        weight = torch.exp(-0.5 * z.square())
        weight = weight / weight.sum()
        grid = self._outer(z).expand(nodes, *self.batch_shape)
        return self.from_base(grid), self._outer(weight)


class GaussianPredictive(ScalarPredictive):
    """A batch of Gaussians N(loc, scale^2), everything in closed form.

    Args:
        loc, scale: mean and standard deviation, broadcastable.

    Example:
        >>> GaussianPredictive(torch.zeros(2), torch.ones(2)).crps(torch.zeros(2))
        tensor([0.2337, 0.2337])
    """

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.scale = loc, scale
        super().__init__(
            broadcast_shapes(loc.shape, scale.shape),
            dtype=loc.dtype,
            device=loc.device,
            validate_args=validate_args,
        )
        if self._validate_args and has_values(scale) and bool((scale < 0).any()):
            raise DomainError("scale is a standard deviation and must not be negative.")

    def from_base(self, z: Tensor) -> Tensor:
        return self.loc + self.scale * z

    def to_base(self, x: Tensor) -> Tensor:
        return (x - self.loc) / self.scale

    def _icdf(self, u: Tensor) -> Tensor:
        return self.from_base(level_to_base(u))

    def _cdf(self, x: Tensor) -> Tensor:
        return base_to_level(self.to_base(x))

    def _log_prob(self, x: Tensor) -> Tensor:
        return -gaussian_nll(self.loc, self.scale, x, reduction="none")

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        return gaussian_crps(self.loc, self.scale, x, reduction="none")

    @property
    def mean(self) -> Tensor:
        return self.loc.expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        return self.scale.square().expand(self.batch_shape)
