"""The one-dimensional case: a conditional quantile function, for regressors and box heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.distributions import constraints

from .conditioners.independent import Independent
from .distributions import ScalarPredictive
from .normal import log_density
from .objectives import Levels, conditional_loss
from .spaces import OutputSpace, Support
from .transformers import Direction, Transformer, make_transformer
from .validation import (
    as_shape,
    at_least_float32,
    check_context,
    check_finite,
    paired_shape,
    reduce,
)

__all__ = ["QuantileDistribution", "QuantileFunction"]


class QuantileDistribution(ScalarPredictive):
    """The distribution with quantile function Q(u) = space.to_data(transformer.quantile(u, h)).

    Args:
        transformer: the family of distributions.
        h: parameters (*batch_shape, transformer.n_params), in the standardised space.
        space: map between data and standardised space; None for the identity.
        validate_args: see `ScalarPredictive`.

    Example:
        >>> import torch
        >>> transformer = make_transformer("spline")
        >>> dist = QuantileDistribution(transformer, torch.zeros(3, transformer.n_params))
        >>> dist.icdf(torch.tensor(0.975))
        tensor([1.9600, 1.9600, 1.9600])
        >>> dist.cdf(torch.tensor([-1.96, 0.0, 1.96]))
        tensor([0.0250, 0.5000, 0.9750])
    """

    def __init__(
        self,
        transformer: Transformer,
        h: Tensor,
        space: OutputSpace | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.transformer = transformer
        self.h = h = at_least_float32(h)
        self.space = OutputSpace().to(h) if space is None else space
        super().__init__(h.shape[:-1], dtype=h.dtype, device=h.device, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return self.space.constraint

    def from_base(self, z: Tensor) -> Tensor:
        """The value at z of the increasing map whose image of N(0, 1) is this distribution."""
        return self.space.to_data(self.transformer.from_base(z, self.h))

    def to_base(self, x: Tensor) -> Tensor:
        """The inverse of `from_base`; z ~ N(0, 1) when x follows this distribution."""
        return self.transformer.to_base(self.space.to_model(x)[0], self.h)

    def base_and_log_prob(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, log_slope = self.space.to_model(x)
        z, log_dz = self.transformer.to_base_and_slope(y, self.h)
        return z, log_density(z) + log_dz + log_slope

    def _icdf(self, u: Tensor) -> Tensor:
        return self.space.to_data(self.transformer.quantile(u, self.h))

    def _cdf(self, x: Tensor) -> Tensor:
        x = x.clamp(self.space.low, self.space.high)
        return self.transformer.cdf(self.space.to_model(x)[0], self.h)

    def _log_prob(self, x: Tensor) -> Tensor:
        y, log_slope = self.space.to_model(x)
        return self.transformer.log_prob(y, self.h) + log_slope

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        if not self.space.is_linear:
            return None
        crps = self.transformer.crps(self.space.to_model(x)[0], self.h)
        return None if crps is None else crps * self.space.scale.to(crps.dtype)

    def __repr__(self) -> str:
        family = type(self.transformer).__name__
        return f"{type(self).__name__}({family}, batch_shape={tuple(self.batch_shape)})"


class QuantileFunction(nn.Module):
    """A scalar distribution, conditional on a context vector: context -> h -> distribution.

    Args:
        transformer: name in `TRANSFORMERS`, or a `Transformer` object.
        context: number of context features; 0 learns one unconditional distribution.
        direction: "quantile" (the default) models Q and trains by the quantile loss, "cdf" models F
            and trains by the CRPS.
        support: (low, high) of the outcome, None or an infinite number for an open side.
        hidden: sizes of hidden layers between context and parameters; none by default, because the
            context usually is the output of a network already.
        **transformer_options: passed to the transformer's class, for example `bins=8`.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = QuantileFunction("spline", context=3)
        >>> dist = model(torch.randn(5, 3))
        >>> low, high = dist.interval(0.9)  # (5,) each
        >>> dist.sample((100,)).shape
        torch.Size([100, 5])
        >>> model.loss(torch.randn(5), torch.randn(5, 3)).shape
        torch.Size([])
    """

    def __init__(
        self,
        transformer: str | Transformer = "spline",
        context: int = 0,
        direction: Direction | None = None,
        support: Support | None = None,
        hidden: Sequence[int] = (),
        **transformer_options: Any,
    ) -> None:
        super().__init__()
        self.transformer = make_transformer(transformer, direction, **transformer_options)
        self.space = OutputSpace(None, support)
        (context,) = as_shape(context, "context")
        sizes = as_shape(hidden, "hidden")
        self.conditioner = Independent(1, context, self.transformer.n_params, sizes)
        self.context = context
        self.context_space = OutputSpace(context) if context else None

    def fit_scaling(self, x: Tensor, context: Tensor | None = None) -> QuantileFunction:
        """Standardise the outcome, and the context if given, by robust location and spread.

        Args:
            x: training data, any shape.
            context: training context, shape (..., context); None leaves contexts as they are.

        Returns:
            The model itself.
        """
        self.space.fit(x)
        if context is not None:
            check_context(context, self.context)
            cast(OutputSpace, self.context_space).fit(context)
        return self

    def parameters_of(self, context: Tensor | None = None) -> Tensor:
        """Parameters h (*batch, n_params) for a context (*batch, context)."""
        check_context(context, self.context)
        if context is not None:
            space = cast(OutputSpace, self.context_space)
            context = space.to_model(context.to(space.loc.dtype))[0]
        return self.conditioner.parameters_of(context).squeeze(-2)

    def forward(self, context: Tensor | None = None) -> QuantileDistribution:
        """The distribution for a context (*batch, context); its batch shape is *batch."""
        return QuantileDistribution(self.transformer, self.parameters_of(context), self.space)

    def loss(
        self,
        x: Tensor,
        context: Tensor | None = None,
        objective: str | None = None,
        levels: Levels = 8,
        reduction: str = "mean",
    ) -> Tensor:
        """Loss of observations, in units of the spread of the data.

        Args:
            x: observations, broadcastable with the batch shape of the context.
            context: (*batch, context), None without context.
            objective: "quantile", "crps" or "nll"; by default what the direction is made for.
            levels: how losses without a closed form are integrated, see `make_levels`.
            reduction: "mean", "sum" or "none".
        """
        if objective is None:
            objective = "quantile" if self.transformer.direction == "quantile" else "crps"
        check_finite(x, "x")
        h = self.parameters_of(context)
        batch = paired_shape(x=x.shape, context=h.shape[:-1])
        x, h = x.expand(batch), h.expand(*batch, h.shape[-1])
        x = at_least_float32(x.to(self.space.loc.dtype))
        losses = conditional_loss(self.transformer, self.space, x, h, objective, levels)
        return reduce(losses, reduction)

    def quantile(self, u: Tensor, context: Tensor | None = None) -> Tensor:
        """Q(u); levels broadcast with the batch shape of the context."""
        return self(context).icdf(u)  # type: ignore[no-any-return]

    def cdf(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """F(x); x broadcasts with the batch shape of the context."""
        return self(context).cdf(x)  # type: ignore[no-any-return]

    def log_prob(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """log F'(x); x broadcasts with the batch shape of the context."""
        return self(context).log_prob(x)  # type: ignore[no-any-return]

    def sample(self, n: int | Sequence[int] = (), context: Tensor | None = None) -> Tensor:
        """Samples (n, *batch) or (*n, *batch), without gradient."""
        return self(context).sample(n)  # type: ignore[no-any-return]
