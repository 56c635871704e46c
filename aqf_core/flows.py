r"""Autoregressive quantile flows: a conditioner and a transformer, trained by quantile losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from .conditioners import Conditioner, make_conditioner
from .errors import ShapeError, UnknownNameError
from .flow_distribution import FlowDistribution
from .levels import LevelStrategy
from .losses import energy_score
from .normal import base_to_level, level_to_base, log_density
from .objectives import OBJECTIVES, standardised_loss
from .spaces import OutputSpace, Support
from .transformers import Direction, Transformer, make_transformer
from .transformers.base import _full_precision
from .validation import (
    as_shape,
    broadcast_shapes,
    check_context,
    check_finite,
    check_levels,
    check_tensor,
    reduce,
    tracing,
)

__all__ = ["AutoregressiveQuantileFlow"]

# Points generated together. Large enough to amortise the cost of launching operations, small
# enough for the work of one step to stay in the cache and for memory not to matter.
CHUNK = 16384

# Conditioners see values up to this many robust standard deviations. An outlier beyond is a sign,
# not a number: it must not blow up the parameters of all later variables.
SEEN_LIMIT = 100.0


class AutoregressiveQuantileFlow(nn.Module):
    r"""A joint distribution of d variables as a chain of one-dimensional quantile functions.

    .. math:: x_j = Q(u_j; h_j), \qquad h_j = c_j(x_{<j}, \mathrm{context}), \qquad u_j \sim U(0, 1)

    The conditioner c emits the parameters of each conditional, the transformer Q is a strictly
    increasing function of the level u. Training compares every conditional with the observation
    (`loss`), which needs no Jacobian and takes one parallel pass; sampling generates one variable
    after the other with an incremental conditioner, which costs about one pass as well. Densities
    are exact.

    Args:
        features: number of variables d, or the shape of an event such as (C, H, W).
        context: number of context features, 0 for an unconditional distribution.
        transformer: a name ("affine", "piecewise_linear", "spline", "monotone_net",
            "deep_sigmoid", "sigmoid_mixture", "unconstrained") or a `Transformer`.
        conditioner: a name ("masked_mlp", "recurrent", "pixelcnn", "independent") or a
            `Conditioner`.
        hidden: sizes of the conditioner's hidden layers.
        direction: "quantile" (the default) to parametrise Q, "cdf" to parametrise F = Q^-1.
        support: bounds (low, high) of every variable; None leaves a side unbounded.
        transformer_options: further arguments of a transformer given by name.
        conditioner_options: further arguments of a conditioner given by name, such as
            {"order": "random"}.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> flow = AutoregressiveQuantileFlow(features=2, context=3)
        >>> x, context = torch.randn(64, 2), torch.randn(64, 3)
        >>> flow.loss(x, context).shape
        torch.Size([])
        >>> u = flow.cdf(x, context)
        >>> torch.allclose(flow.quantile(u, context), x, atol=1e-4)
        True
    """

    def __init__(
        self,
        features: int | Sequence[int],
        context: int = 0,
        transformer: str | Transformer = "spline",
        conditioner: str | Conditioner = "masked_mlp",
        hidden: Sequence[int] = (64, 64),
        direction: Direction | None = None,
        support: Support | None = None,
        transformer_options: Mapping[str, Any] | None = None,
        conditioner_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        shape = as_shape(features, "features")
        if not shape or min(shape) < 1:
            raise ShapeError(f"features must be at least 1, got {features}.")
        (context,) = as_shape(context, "context")
        self.event_shape = torch.Size(shape)
        self.features = math.prod(shape)
        self.context = context
        options = {"direction": direction, **dict(transformer_options or {})}
        self.transformer = make_transformer(transformer, **options)
        self.conditioner = make_conditioner(
            conditioner,
            shape,
            context,
            self.transformer.n_params,
            hidden,
            **dict(conditioner_options or {}),
        )
        self.space = OutputSpace(self.features, support)
        self.context_space = OutputSpace(context) if context else None

    # Fitting -----------------------------------------------------------------------------------

    def fit_scaling(self, x: Tensor, context: Tensor | None = None) -> AutoregressiveQuantileFlow:
        """Standardise data, and context if given, by robust location and scale. Call it once.

        Losses are then in units of the spread of each variable. Constant columns and outliers do
        no harm. Without this call data are taken as they are.

        Args:
            x: training data, shape (N, *event_shape).
            context: training context, shape (N, context); None leaves contexts as they are.

        Returns:
            The flow itself.
        """
        self.space.fit(self._flat(x, "x"))
        if context is not None:
            check_context(context, self.context)
            cast(OutputSpace, self.context_space).fit(context)
        return self

    def loss(
        self,
        x: Tensor,
        context: Tensor | None = None,
        objective: str = "quantile",
        levels: int | str | Tensor | LevelStrategy = 8,
        reduction: str = "mean",
        samples: int = 8,
    ) -> Tensor:
        r"""How badly the flow predicts the data; differentiable in the parameters.

        | objective  | per observation                                                     |
        |------------|---------------------------------------------------------------------|
        | "quantile" | sum over j of the quantile loss of x_j given the observed x_<j      |
        | "crps"     | the same sum of CRPS; exactly twice the quantile loss               |
        | "nll"      | -log p(x), up to the constant sum of log units                      |
        | "energy"   | fair energy score of `samples` joint samples; judges the joint law  |

        All but "nll" are in units of `space.unit` (the spread found by `fit_scaling`).

        Args:
            x: observations, shape (*B, *event_shape).
            context: shape (*B, context) up to broadcasting.
            objective: see above.
            levels: how integrals over levels are sampled where there is no closed form: a number
                of lattice levels, a strategy, its name, or the levels themselves.
            reduction: "mean" or "sum" over observations, or "none".
            samples: number of samples for "energy".

        Returns:
            A scalar, or shape (*B) with reduction="none".
        """
        if objective == "energy":
            return reduce(self._energy(x, context, samples), reduction)
        if objective not in OBJECTIVES:
            names = ", ".join(sorted((*OBJECTIVES, "energy")))
            raise UnknownNameError(f"unknown objective {objective!r}; choose from {names}.")
        with self._full_precision():
            known = self._condition(x, context)
            each = standardised_loss(self.transformer, self.space, *known, objective, levels)
            return reduce(each.sum(-1), reduction)

    def _energy(self, x: Tensor, context: Tensor | None, samples: int) -> Tensor:
        """Fair energy score (*B) in units of `space.unit`, with own samples per observation."""
        x = self._flat(x, "x")
        shape = x.shape[:-1]
        if context is not None:
            check_context(context, self.context, shape)
            shape = broadcast_shapes(shape, context.shape[:-1])
            context = context.expand(*shape, self.context)
        draws = self.rsample((samples,) if context is not None else (samples, *shape), context)
        unit = self.space.unit
        return energy_score(self._flat(draws, "samples") / unit, x / unit, reduction="none")

    def crps(self, x: Tensor, context: Tensor | None = None, levels: int = 256) -> Tensor:
        """CRPS of every conditional given the observed earlier variables, in data units.

        For d = 1 or an independent conditioner this is the CRPS of each variable; otherwise it
        judges one-step-ahead predictions, and its sum over variables is a proper score.

        Args:
            x: observations, shape (*B, *event_shape).
            context: shape (*B, context) up to broadcasting.
            levels: number of levels where there is no closed form.

        Returns:
            Shape (*B, *event_shape).
        """
        with self._full_precision():
            known, fixed = self._condition(x, context), LevelStrategy("fixed", levels)
            each = standardised_loss(self.transformer, self.space, *known, "crps", fixed)
            return self._event(each * self.space.unit)

    # Evaluating --------------------------------------------------------------------------------

    def forward(self, context: Tensor | None = None) -> FlowDistribution:
        """The distribution given a context (*B, context), with batch shape *B."""
        return FlowDistribution(self, context)

    def log_prob(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """log p(x | context), shape (*B), for x of shape (*B, *event_shape)."""
        with self._full_precision():
            _, y, log_slope, h = self._condition(x, context)
            z, log_dz = self.transformer.to_base_and_slope(y, h)
            return (log_density(z) + log_dz + log_slope).sum(-1)

    def to_base(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The z ~ N(0, I) that the flow maps to x; shape (*B, *event_shape)."""
        with self._full_precision():
            _, y, _, h = self._condition(x, context)
            return self._event(self.transformer.to_base(y, h))

    def from_base(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """The x at z, variable by variable; the inverse of `to_base`."""
        return self._from_base(self._flat(z, "z"), context)

    def _from_base(self, z: Tensor, context: Tensor | None) -> Tensor:
        context = self._check_context(context, z.shape[:-1])
        shape = z.shape[:-1]
        if context is not None:
            shape = broadcast_shapes(shape, context.shape[:-1])
        with self._full_precision():
            return self._event(self._generate(z.expand(*shape, self.features), context))

    def cdf(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        r"""The Rosenblatt transform u_j = F(x_j | x_<j, context), in one parallel pass.

        Args:
            x: shape (*B, *event_shape).
            context: shape (*B, context) up to broadcasting.

        Returns:
            u of the shape of x, independent and uniform if the flow is right.
        """
        return base_to_level(self.to_base(x, context))

    def quantile(self, u: Tensor, context: Tensor | None = None) -> Tensor:
        r"""The inverse of `cdf`: x_j = Q(u_j | x_<j, context), variable by variable.

        Args:
            u: levels in [0, 1], shape (*B, *event_shape); 0 and 1 give finite values.
            context: shape (*B, context) up to broadcasting.
        """
        u = check_levels(self._flat(u, "u"))
        return self._from_base(self._float(level_to_base(u)), context)

    # Sampling ----------------------------------------------------------------------------------

    def sample(
        self,
        n: int | Sequence[int] = (),
        context: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw samples without recording gradients.

        Args:
            n: number of samples, or a sample shape *S.
            context: shape (*B, context) for a conditional flow.
            generator: source of randomness; default the global one.

        Returns:
            Shape (*S, *B, *event_shape).
        """
        with torch.no_grad():
            return self.rsample(n, context, generator)

    def rsample(
        self,
        n: int | Sequence[int] = (),
        context: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw samples that are differentiable in parameters and context; see `sample`."""
        shape = as_shape(n, "the number of samples")
        context = self._check_context(context)
        if context is not None:
            shape = (*shape, *context.shape[:-1])
        like = self.space.loc
        size = (*shape, self.features)
        if generator is None:  # spelled out: torch.compile and vmap reject a generator of None
            z = torch.randn(size, dtype=like.dtype, device=like.device)
        else:
            z = torch.randn(size, generator=generator, dtype=like.dtype, device=like.device)
        with self._full_precision():
            return self._event(self._generate(z, context, overwrite=True))

    def _generate(self, z: Tensor, context: Tensor | None, overwrite: bool = False) -> Tensor:
        """Map z (*B, d) to data, in chunks when neither gradients nor a trace are recorded.

        With `overwrite`, z may be used as the memory of the result.
        """
        batch_shape = z.shape[:-1]
        n = math.prod(batch_shape)
        if torch.is_grad_enabled() or tracing() or n <= CHUNK:
            return self._generate_chunk(z, context)
        # Two axes: samples that share a context, and contexts.
        inner = 0 if context is None else context.dim() - 1
        if context is not None and context.shape[:-1] != batch_shape[len(batch_shape) - inner :]:
            context = context.expand(*batch_shape, context.shape[-1])
            inner = len(batch_shape)
        many = math.prod(batch_shape[len(batch_shape) - inner :])
        z = z.reshape(n // many, many, self.features)
        if context is not None:
            context = context.reshape(many, context.shape[-1])
        out = z if overwrite else torch.empty_like(z)
        wide = min(many, CHUNK)
        tall = max(1, CHUNK // wide)
        for b in range(0, many, wide):
            part = None if context is None else context[b : b + wide]
            for s in range(0, n // many, tall):
                piece = (slice(s, s + tall), slice(b, b + wide))
                out[piece] = self._generate_chunk(z[piece], part)
        return out.reshape(*batch_shape, self.features)

    def _generate_chunk(self, z: Tensor, context: Tensor | None) -> Tensor:
        # Feature-major: every step then works on contiguous memory.
        columns = z.movedim(-1, 0).clone(memory_format=torch.contiguous_format)
        values = list(columns.unbind(0))
        state = self.conditioner.start(z.shape[:-1], context)
        if torch.is_grad_enabled() or tracing() or columns.dtype.itemsize < 4:
            transform: Callable[[int, Tensor], None] = partial(_replace, self.transformer, values)
        else:
            transform = self.transformer.sampler(columns)
        seen: Tensor | None = None
        for t, j in enumerate(self.conditioner.order):
            h, state = self.conditioner.step(state, t, seen)
            transform(j, h)
            seen = self._seen(values[j])
        return self.space.to_data(torch.stack(values, dim=-1))

    # Shapes and checks -------------------------------------------------------------------------

    def _condition(
        self, x: Tensor, context: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Flat data x, model values y, log dy/dx (*B, d) and parameters h (*B, d, P)."""
        x = self._flat(x, "x")
        context = self._check_context(context, x.shape[:-1])
        y, log_slope = self.space.to_model(x)
        h = self.conditioner(self._seen(y), context)
        if h.shape[:-1] != x.shape:
            x, y, log_slope = (v.expand(h.shape[:-1]) for v in (x, y, log_slope))
        return x, y, log_slope, h

    def _float(self, x: Tensor) -> Tensor:
        return x.to(self.space.loc.dtype)

    def _seen(self, y: Tensor) -> Tensor:
        """What the conditioner gets to see of a value in model space."""
        return self._float(y.clamp(-SEEN_LIMIT, SEEN_LIMIT))

    def _flat(self, x: Tensor, name: str) -> Tensor:
        """Check x (..., *event_shape) and flatten the event to (..., d)."""
        dims = len(self.event_shape)
        if check_tensor(x, name).dim() < dims or x.shape[-dims:] != self.event_shape:
            wanted = ", ".join(map(str, self.event_shape))
            raise ShapeError(f"{name} must have shape (..., {wanted}), got {tuple(x.shape)}.")
        x = x if dims == 1 else x.flatten(-dims)
        return check_finite(self._float(x), name)

    def _event(self, x: Tensor) -> Tensor:
        """Undo `_flat`."""
        return x.reshape(*x.shape[:-1], *self.event_shape)

    def _check_context(
        self, context: Tensor | None, batch_shape: Sequence[int] | None = None
    ) -> Tensor | None:
        check_context(context, self.context, batch_shape)
        if context is None or self.context_space is None:
            return None
        return self.context_space.to_model(self._float(context))[0]

    def _full_precision(self) -> Any:
        """Switch autocast off: the flow computes in the precision of its parameters."""
        return _full_precision(self.space.loc)

    def extra_repr(self) -> str:
        shape = self.features if len(self.event_shape) == 1 else tuple(self.event_shape)
        return f"features={shape}, context={self.context}"


def _replace(transformer: Transformer, values: list[Tensor], j: int, h: Tensor) -> None:
    """Replace z_j by y_j in a list, which leaves the tensors that autograd has saved alone."""
    values[j] = transformer.from_base(values[j], h)
