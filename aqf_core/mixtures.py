r"""Mixtures of one-dimensional predictive distributions, with exact CDF, density and quantiles.

Ensembles and Monte-Carlo dropout predict a mixture. Averaging the members' quantiles is not the
quantile of the mixture; this finds the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .distributions import GaussianPredictive, ScalarPredictive
from .errors import DomainError, ShapeError
from .inversion import ValueAndSlope, invert_monotone
from .losses import gaussian_mixture_crps
from .normal import base_to_level, level_to_base, log_base_to_level, log_level_to_base
from .validation import as_shape, broadcast_shapes, check_levels, has_values
from .wrapping import as_predictive

__all__ = ["MixturePredictive"]

# Members disagree with their mixture by rounding; widening their levels by this much in z is safe.
BRACKET_MARGIN = 0.05
# A root is found when the next step is this many roundings long.
SETTLED = 16
# The table behind many levels at once: knots per component, rows kept of all of them.
TABLE_KNOTS, TABLE_ROWS = 16, 64
# Roundings by which the log-odds of a level may be missed (1e-4 in float32), and when to give up.
TABLE_TOLERANCE = 1000
# Levels further inside than this need no logarithms of tails.
INNER_LEVEL = 1e-3
MAX_STEPS = 60


class MixturePredictive(ScalarPredictive):
    r"""The mixture \(F(x) = \sum_t w_t F_t(x)\) of T predictive distributions.

    The CDF and the density are sums. The quantile lies between the smallest and the largest
    quantile of the components, which brackets the one root search; it works on the log-odds of F,
    so both tails keep full precision, and carries implicit gradients with respect to the
    components and the weights.

    Args:
        components: a list of T distributions of broadcastable batch shapes, or one
            `ScalarPredictive` whose *first* batch dimension runs over the T components.
        weights: (T,) or (T, *batch_shape), non-negative; normalised to sum 1 over the first
            dimension. Equal weights when omitted.

    Example:
        >>> two = GaussianPredictive(torch.tensor([[-2.0], [2.0]]), torch.ones(2, 1))
        >>> mixture = MixturePredictive(two)
        >>> mixture.batch_shape, mixture.icdf(torch.tensor([0.25])), mixture.variance
        (torch.Size([1]), tensor([-2.0001]), tensor([5.]))
    """

    def __init__(
        self,
        components: ScalarPredictive | Sequence[Distribution],
        weights: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(components, ScalarPredictive):
            components = _stack(components)
        if len(components.batch_shape) == 0 or components.batch_shape[0] == 0:
            raise ShapeError(
                "a mixture needs at least one component along the first batch dimension, got batch "
                f"shape {tuple(components.batch_shape)}."
            )
        self.components = components
        self._depth = len(components.batch_shape) - 1
        like = torch.empty(0, dtype=components.dtype, device=components.device)
        self.weights = normalise_weights(weights, components.batch_shape[0], self._depth, like)
        # The logarithm of a weight 0 would have no gradient.
        self._log_weights = self.weights.clamp_min(torch.finfo(components.dtype).tiny).log()
        super().__init__(
            components.batch_shape[1:],
            dtype=components.dtype,
            device=components.device,
            validate_args=validate_args,
        )

    @property
    def _dim(self) -> int:
        """The position of the component dimension, counted from the end."""
        return -self._depth - 1

    def _spread(self, x: Tensor) -> Tensor:
        """Insert the component dimension: (..., *batch_shape) -> (..., T, *batch_shape)."""
        missing = self._depth - x.dim()
        x = x.reshape(*[1] * missing, *x.shape) if missing > 0 else x
        return x.unsqueeze(self._dim)

    def _sum(self, terms: Tensor) -> Tensor:
        return (self.weights * terms).sum(self._dim)

    def _cdf(self, x: Tensor) -> Tensor:
        return self._sum(self.components.cdf(self._spread(x)))

    def _log_prob(self, x: Tensor) -> Tensor:
        log_prob = self.components.log_prob(self._spread(x))
        return torch.logsumexp(self._log_weights + log_prob, self._dim)

    def _icdf(self, u: Tensor) -> Tensor:
        return self.from_base(torch.special.ndtri(u))

    def _log_tails(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log F(x) and log(1 - F(x)), both to full precision."""
        z = self.components.to_base(self._spread(x))
        lower = torch.logsumexp(self._log_weights + log_base_to_level(z), self._dim)
        upper = torch.logsumexp(self._log_weights + log_base_to_level(-z), self._dim)
        return lower, upper

    def to_base(self, x: Tensor) -> Tensor:
        """z = Phi^-1(F(x)), from whichever tail is smaller."""
        lower, upper = self._log_tails(x)
        tail = log_level_to_base(torch.minimum(lower, upper))
        return torch.where(lower <= upper, tail, -tail)

    def from_base(self, z: Tensor) -> Tensor:
        """x with F(x) = Phi(z), by bracketed root finding on the log-odds of F."""
        z = z.expand(broadcast_shapes(z.shape, self.batch_shape))
        with torch.no_grad():
            low = self.components.from_base(self._spread(z - BRACKET_MARGIN)).amin(self._dim)
            high = self.components.from_base(self._spread(z + BRACKET_MARGIN)).amax(self._dim)
            first, last = self._log_odds(low)[0], self._log_odds(high)[0]
        target = log_base_to_level(z) - log_base_to_level(-z)
        # Where a component's CDF is flat in floating point its ends are as far as it can tell.
        target = torch.minimum(torch.maximum(target, first), last)
        return self._search(target, low, high)

    def _search(self, target: Tensor, low: Tensor, high: Tensor) -> Tensor:
        tolerance = SETTLED * torch.finfo(target.dtype).eps
        return invert_monotone(self._log_odds, target, low, high, tolerance)

    def quantiles(self, levels: Tensor) -> Tensor:
        """Quantiles of every element at the same levels (K,), shape (*batch_shape, K).

        One table of the mixture's CDF serves all levels, so that a few Newton steps inside its
        cells finish each of them. Where gradients or a trace are recorded this is `icdf`.
        """
        tensors = (self.components.from_base(self._outer(self._as_value(0.0))), self.weights)
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if recorded or not has_values(tensors[0]):
            return super().quantiles(levels)
        levels = self._as_value(levels)
        if levels.dim() != 1 or levels.numel() == 0:
            return super().quantiles(levels)
        z = level_to_base(check_levels(levels))
        target = self._outer(log_base_to_level(z) - log_base_to_level(-z))
        target = target.expand(len(z), *self.batch_shape)
        eps = torch.finfo(target.dtype).eps
        inner = bool((levels.min() > INNER_LEVEL) & (levels.max() < 1 - INNER_LEVEL))
        log_odds = self._inner_log_odds if inner else self._log_odds
        with torch.no_grad():
            low, high, x = self._cells(z, target, log_odds)
            for _ in range(MAX_STEPS):
                value, slope = log_odds(x)
                low, high = (
                    torch.where(value < target, x, low),
                    torch.where(value < target, high, x),
                )
                newton = x + (target - value) / slope
                # NaN and infinity of a flat CDF fail these comparisons and bisect.
                good = (newton >= low) & (newton <= high)
                x = torch.where(good, newton, 0.5 * (low + high))
                open_ = (value - target).abs() > TABLE_TOLERANCE * eps
                if not bool((open_ & (high - low > SETTLED * eps * (1 + x.abs()))).any()):
                    break
        return x.movedim(0, -1)

    def _cells(
        self, z: Tensor, target: Tensor, log_odds: ValueAndSlope
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ends of an interval that holds each quantile, and where to start in it.

        The components' quantiles on a grid, pooled and sorted, are where the mixture has its mass.
        """
        knots = torch.linspace(0, 1, TABLE_KNOTS, dtype=z.dtype, device=z.device)
        first, last = z.min() - BRACKET_MARGIN, z.max() + BRACKET_MARGIN
        pooled = self.components.from_base(
            self._spread(self._outer(first + (last - first) * knots))
        )
        pooled = pooled.flatten(0, 1).sort(0).values
        rows = torch.linspace(0, len(pooled) - 1, TABLE_ROWS, device=z.device).round().long()
        table = pooled[rows]
        odds = log_odds(table)[0].cummax(0).values
        cell = torch.searchsorted(
            odds.movedim(0, -1).contiguous(), target.movedim(0, -1).contiguous()
        ).movedim(-1, 0)
        above = cell.clamp(1, len(rows) - 1)
        low, high = table.gather(0, above - 1), table.gather(0, above)
        odds_low, odds_high = odds.gather(0, above - 1), odds.gather(0, above)
        share = (target - odds_low) / (odds_high - odds_low)
        return low, high, low + (high - low) * share.nan_to_num(0.5).clamp(0, 1)

    def _inner_log_odds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `_log_odds` without its care for the tails, at a third of the cost."""
        z, log_prob = self.components.base_and_log_prob(self._spread(x))
        lower, upper = self._sum(base_to_level(z)), self._sum(base_to_level(-z))
        density = self._sum(log_prob.exp())
        return (lower / upper).log(), density / (lower * upper)

    def _log_odds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log F(x) / (1 - F(x)) and its slope p(x) / F(x) + p(x) / (1 - F(x))."""
        lower, upper = self._log_tails(x)
        log_prob = self._log_prob(x)
        return lower - upper, torch.exp(log_prob - lower) + torch.exp(log_prob - upper)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples (*sample_shape, *batch_shape): pick a component, then draw from it.

        `rsample` inverts the mixture instead, which costs more and is differentiable.
        """
        shape = self._extended_shape(torch.Size(as_shape(sample_shape, "the sample shape")))
        with torch.no_grad():
            z = torch.randn(shape, dtype=self.dtype, device=self.device)
            draws = self.components.from_base(self._spread(z))
            # The first component whose cumulative weight exceeds a uniform number.
            u = self._spread(torch.rand(shape, dtype=self.dtype, device=self.device))
            pick = (u > self.weights.cumsum(self._dim)).sum(self._dim, keepdim=True)
            pick = pick.clamp_max(draws.shape[self._dim] - 1)
            return draws.gather(self._dim, pick).squeeze(self._dim)

    @property
    def mean(self) -> Tensor:
        return self._sum(self.components.mean).expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        within, between = self.variance_parts()
        return within + between

    def variance_parts(self) -> tuple[Tensor, Tensor]:
        r"""Variance within and between components, each of the batch shape.

        \(\sum_t w_t \sigma_t^2\) is what every member expects (aleatoric) and
        \(\sum_t w_t (\mu_t - \mu)^2\) what they disagree about (epistemic); they add up to
        `variance`.
        """
        means = self.components.mean
        between = (means - self._sum(means).unsqueeze(self._dim)).square()
        within = self._sum(self.components.variance).expand(self.batch_shape)
        return within, self._sum(between).expand(self.batch_shape)

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        if not isinstance(self.components, GaussianPredictive):
            return None
        shape = self.components.batch_shape
        loc, scale, weights = (
            t.expand(shape).movedim(0, -1)
            for t in (self.components.loc, self.components.scale, self.weights)
        )
        return gaussian_mixture_crps(weights, loc, scale, x, reduction="none")


def normalise_weights(weights: Tensor | None, count: int, depth: int, like: Tensor) -> Tensor:
    """Mixture weights that sum to 1 over the first dimension, and broadcast with the batch.

    Args:
        weights: (count,) or (count, *batch_shape); equal when None.
        count: number of components.
        depth: number of batch dimensions.
        like: a tensor with the dtype and device of the result.

    Example:
        >>> normalise_weights(torch.tensor([1.0, 3.0]), 2, depth=1, like=torch.zeros(1))
        tensor([[0.2500],
                [0.7500]])
    """
    if weights is None:
        weights = torch.full((count,), 1 / count, dtype=like.dtype, device=like.device)
    weights = torch.as_tensor(weights, device=like.device)
    if weights.dim() == 0 or weights.shape[0] != count:
        raise ShapeError(
            f"{count} components need weights of shape ({count},) or ({count}, *batch_shape), got "
            f"{tuple(weights.shape)}."
        )
    total = weights.sum(0, keepdim=True)
    if has_values(weights) and not (bool((weights >= 0).all()) and bool((total > 0).all())):
        raise DomainError("mixture weights must be non-negative with a positive sum.")
    weights = (weights / total).to(like.dtype)
    return weights.reshape(count, *[1] * depth) if weights.dim() == 1 else weights


def _stack(components: Sequence[Distribution]) -> ScalarPredictive:
    if isinstance(components, Distribution):
        raise TypeError(
            "a mixture needs a list of distributions, or one ScalarPredictive whose first batch "
            f"dimension runs over them, got {type(components).__name__}."
        )
    if len(components) == 0:
        raise ShapeError("a mixture needs at least one component, got an empty list.")
    if any(c.event_shape for c in components):
        raise ShapeError(
            "a MixturePredictive mixes one-dimensional distributions; mix those of flows with "
            "several variables by FlowMixture."
        )
    predictives = [as_predictive(c) for c in components]
    gaussians = [p for p in predictives if isinstance(p, GaussianPredictive)]
    if len(gaussians) == len(predictives):
        shape = broadcast_shapes(*[g.batch_shape for g in gaussians])
        loc = torch.stack([g.loc.expand(shape) for g in gaussians])
        return GaussianPredictive(loc, torch.stack([g.scale.expand(shape) for g in gaussians]))
    return _Stacked(predictives)


class _Stacked(ScalarPredictive):
    """Different distributions side by side: the first batch dimension runs over them."""

    def __init__(self, members: list[ScalarPredictive]) -> None:
        shape = broadcast_shapes(*[m.batch_shape for m in members])
        self.members = [m.expand(shape) for m in members]
        self._depth = len(shape)
        super().__init__((len(members), *shape), dtype=members[0].dtype, device=members[0].device)

    def _each(self, method: str, value: Tensor) -> Tensor:
        dim = -self._depth - 1
        parts = self._broadcast(value).unbind(dim)
        results = [getattr(m, method)(p) for m, p in zip(self.members, parts, strict=True)]
        return torch.stack(results, dim)

    def _icdf(self, u: Tensor) -> Tensor:
        return self._each("icdf", u)

    def _cdf(self, x: Tensor) -> Tensor:
        return self._each("cdf", x)

    def _log_prob(self, x: Tensor) -> Tensor:
        return self._each("log_prob", x)

    def from_base(self, z: Tensor) -> Tensor:
        return self._each("from_base", z)

    def to_base(self, x: Tensor) -> Tensor:
        return self._each("to_base", x)

    @property
    def mean(self) -> Tensor:
        return torch.stack([m.mean for m in self.members])

    @property
    def variance(self) -> Tensor:
        return torch.stack([m.variance for m in self.members])
