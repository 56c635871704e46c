r"""The joint distribution that a flow predicts for a context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .errors import ShapeError
from .losses import energy_score
from .normal import level_to_base
from .validation import as_shape, broadcast_shapes, check_context, check_levels, check_tensor

if TYPE_CHECKING:
    from .flows import AutoregressiveQuantileFlow

__all__ = ["FlowDistribution"]


class FlowDistribution(Distribution):
    r"""A `torch.distributions.Distribution` over events of shape `flow.event_shape`.

    Samples, densities and the conditional transforms `cdf` and `icdf` are exact. Moments and
    intervals concern the marginal of every variable: they are integrals over levels when
    variables are independent given the context (or there is only one), and otherwise come from
    `n_samples` samples, drawn once per object.

    Args:
        flow: the flow; changes of its parameters change the distribution.
        context: shape (*B, context), or None for an unconditional flow.
        batch_shape: shape to expand to; default *B.
        n_samples: number of samples behind marginal moments and intervals.

    Example:
        >>> from aqf_core import AutoregressiveQuantileFlow
        >>> flow = AutoregressiveQuantileFlow(features=2, context=3)
        >>> dist = flow(torch.zeros(5, 3))
        >>> dist
        FlowDistribution(batch_shape=(5,), event_shape=(2,))
        >>> dist.sample((10,)).shape, dist.log_prob(torch.zeros(2)).shape
        (torch.Size([10, 5, 2]), torch.Size([5]))
        >>> low, high = dist.interval(0.9)
        >>> low.shape
        torch.Size([5, 2])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(
        self,
        flow: AutoregressiveQuantileFlow,
        context: Tensor | None = None,
        batch_shape: Sequence[int] | None = None,
        n_samples: int = 1000,
    ) -> None:
        check_context(context, flow.context)
        shape = torch.Size(() if context is None else context.shape[:-1])
        if batch_shape is not None:
            try:
                shape = torch.empty(shape, device="meta").expand(tuple(batch_shape)).shape
            except RuntimeError:
                raise ShapeError(
                    f"batch shape {tuple(shape)} does not expand to {tuple(batch_shape)}."
                ) from None
            if context is not None:
                context = context.expand(*shape, context.shape[-1])
        self.flow = flow
        self.context = context
        self.n_samples = n_samples
        self._draws: Tensor | None = None
        super().__init__(shape, flow.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        low, high = self.flow.space.low, self.flow.space.high
        make: Any = constraints  # the constructors of torch carry no types
        base = make.real
        if math.isfinite(low) and math.isfinite(high):
            base = make.interval(low, high)
        elif math.isfinite(low):
            base = make.greater_than_eq(low)
        elif math.isfinite(high):
            base = make.less_than(high)
        constraint: constraints.Constraint = make.independent(base, len(self.event_shape))
        return constraint

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowDistribution:
        """The same distribution over a larger batch, without copying."""
        return FlowDistribution(self.flow, self.context, batch_shape, self.n_samples)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Differentiable samples, shape (*sample_shape, *batch_shape, *event_shape)."""
        shape = as_shape(sample_shape, "the sample shape")
        if self.context is None:
            shape = (*shape, *self.batch_shape)
        return self.flow.rsample(shape, self.context)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples without gradients, shape (*sample_shape, *batch_shape, *event_shape)."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Exact log density, shape broadcast(value batch, batch_shape)."""
        return self.flow.log_prob(self._broadcast(value), self.context)

    def cdf(self, value: Tensor) -> Tensor:
        """The Rosenblatt transform F(x_j | x_<j), of the shape of the broadcast value."""
        return self.flow.cdf(self._broadcast(value), self.context)

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`: x_j = Q(u_j | x_<j)."""
        return self.flow.quantile(self._broadcast(value), self.context)

    def quantile(self, value: Tensor) -> Tensor:
        """Another name of `icdf`."""
        return self.icdf(value)

    def crps(self, value: Tensor, levels: int = 256) -> Tensor:
        """CRPS of every variable given the observed earlier ones, shape (..., *event_shape)."""
        return self.flow.crps(self._broadcast(value), self.context, levels)

    def energy_score(self, value: Tensor, samples: int = 256) -> Tensor:
        """Fair energy score of joint samples in data units, shape (...)."""
        dims = len(self.event_shape)
        value = self._broadcast(value)
        lead = value.shape[: value.dim() - dims - len(self.batch_shape)]
        draws = self.rsample((samples, *lead))
        return energy_score(draws.flatten(-dims), value.flatten(-dims), reduction="none")

    def interval(self, coverage: float | Tensor) -> tuple[Tensor, Tensor]:
        """Central interval of every variable's marginal that holds `coverage` of it: (low, high).

        Both have shape (*batch_shape, *event_shape). See the class for when they are exact.
        """
        c = check_levels(torch.as_tensor(coverage).to(self.flow.space.loc), "coverage")
        if c.dim() > 0:
            raise ShapeError(f"coverage must be one number, got shape {tuple(c.shape)}.")
        levels = torch.stack([(1.0 - c) / 2.0, (1.0 + c) / 2.0])
        if self._exact:
            values = self._at_base(level_to_base(levels))
        else:
            values = torch.quantile(self._samples().flatten(1), levels, dim=0)
            values = values.reshape(2, *self.batch_shape, *self.event_shape)
        return values[0], values[1]

    @property
    def mean(self) -> Tensor:
        """Mean of every variable, shape (*batch_shape, *event_shape)."""
        if not self._exact:
            return self._samples().mean(0)
        values, weight = self._quadrature()
        return (values * weight).sum(0)

    @property
    def variance(self) -> Tensor:
        """Variance of every variable, shape (*batch_shape, *event_shape)."""
        if not self._exact:
            return self._samples().var(0)
        values, weight = self._quadrature()
        return ((values - (values * weight).sum(0)).square() * weight).sum(0)

    def __repr__(self) -> str:
        batch, event = tuple(self.batch_shape), tuple(self.event_shape)
        return f"FlowDistribution(batch_shape={batch}, event_shape={event})"

    @property
    def _exact(self) -> bool:
        """Whether conditional quantiles are the marginal ones."""
        return self.flow.features == 1 or self.flow.conditioner.independent

    def _samples(self) -> Tensor:
        if self._draws is None:
            self._draws = self.sample((self.n_samples,))
        return self._draws

    def _at_base(self, z: Tensor) -> Tensor:
        """Every variable's value at the same z (K,): shape (K, *batch_shape, *event_shape)."""
        shape = (*self.batch_shape, *self.event_shape)
        z = z.reshape(-1, *[1] * len(shape)).expand(-1, *shape)
        return self.flow.from_base(z, self.context)

    def _quadrature(self, nodes: int = 129, end: float = 8.0) -> tuple[Tensor, Tensor]:
        """Values and weights of E[f(X)]: the trapezoidal rule in z, (K, *batch, *event) each."""
        z = torch.linspace(-end, end, nodes).to(self.flow.space.loc)
        weight = torch.exp(-0.5 * z * z)
        values = self._at_base(z)
        weight = (weight / weight.sum()).reshape(-1, *[1] * (values.dim() - 1))
        return values, weight

    def _broadcast(self, value: Tensor) -> Tensor:
        """Expand the batch dimensions of a value (..., *event_shape) against the batch shape."""
        dims = len(self.event_shape)
        check_tensor(value, "a value")
        if value.dim() < dims or value.shape[value.dim() - dims :] != self.event_shape:
            wanted = ", ".join(map(str, self.event_shape))
            raise ShapeError(f"a value must have shape (..., {wanted}), got {tuple(value.shape)}.")
        try:
            shape = broadcast_shapes(value.shape[: value.dim() - dims], self.batch_shape)
        except ShapeError:
            raise ShapeError(
                f"a value of shape {tuple(value.shape)} does not broadcast with batch shape "
                f"{tuple(self.batch_shape)}."
            ) from None
        return value.expand(*shape, *self.event_shape)
