r"""The joint distribution that a flow predicts for a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import constraints

from .errors import ShapeError
from .joint import JointPredictive
from .quantile_function import QuantileDistribution
from .validation import as_shape, check_context

if TYPE_CHECKING:
    from .flows import AutoregressiveQuantileFlow

__all__ = ["FlowDistribution"]


class FlowDistribution(JointPredictive):
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
        >>> dist.conditionals(torch.zeros(2))  # of each variable given the earlier ones
        QuantileDistribution(RationalQuadraticSpline, batch_shape=(5, 2))
    """

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
        super().__init__(shape, flow.event_shape, flow.space.loc, n_samples)

    @property
    def support(self) -> constraints.Constraint:
        make: Any = constraints.independent  # the constructors of torch carry no types
        constraint: constraints.Constraint = make(self.flow.space.constraint, len(self.event_shape))
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

    def log_prob(self, value: Tensor) -> Tensor:
        """Exact log density, shape broadcast(value batch, batch_shape)."""
        return self.flow.log_prob(self._broadcast(value), self.context)

    def cdf(self, value: Tensor) -> Tensor:
        """The Rosenblatt transform F(x_j | x_<j), of the shape of the broadcast value."""
        return self.flow.cdf(self._broadcast(value), self.context)

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`: x_j = Q(u_j | x_<j)."""
        return self.flow.quantile(self._broadcast(value), self.context)

    def crps(self, value: Tensor, levels: int = 256) -> Tensor:
        """CRPS of every variable given the observed earlier ones, shape (..., *event_shape)."""
        return self.flow.crps(self._broadcast(value), self.context, levels)

    def conditionals(self, value: Tensor) -> QuantileDistribution:
        """The distribution of every variable given the earlier ones in `value`.

        Args:
            value: shape (..., *event_shape).

        Returns:
            One-dimensional distributions of batch shape (..., d), the event flattened.
        """
        flow = self.flow
        with flow._full_precision():
            h = flow._condition(self._broadcast(value), self.context)[3]
        return QuantileDistribution(flow.transformer, h, flow.space)

    def _marginals(self) -> QuantileDistribution | None:
        flow = self.flow
        if flow.features > 1 and not flow.conditioner.independent:
            return None
        nothing = self._like.new_zeros(*self.batch_shape, flow.features)
        with flow._full_precision():
            h = flow.conditioner(nothing, flow._check_context(self.context))
        return QuantileDistribution(flow.transformer, h, flow.space)
