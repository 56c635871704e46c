"""Poisson predictions, and equal mixtures of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from ..distributions import ScalarPredictive

__all__ = ["PoissonPredictive"]

# Counts over which the CRPS is summed exactly; beyond, a Poisson distribution is nearly smooth.
MAX_GRID = 4096


class PoissonPredictive(ScalarPredictive):
    r"""The equal mixture of M Poisson distributions; M = 1 is the Poisson distribution itself.

    Quantiles are the smallest count k with \(F(k) \ge u\). `log_prob` is the logarithm of the
    probability of a count, -inf between counts.

    Args:
        rates: positive, shape (M, *batch_shape).

    Example:
        >>> dist = PoissonPredictive(torch.tensor([[0.5, 4.0]]))
        >>> dist.icdf(torch.tensor(0.9)), dist.cdf(torch.tensor(3.0))
        (tensor([1., 7.]), tensor([0.9982, 0.4335]))
    """

    has_rsample = False

    def __init__(self, rates: Tensor, validate_args: bool | None = None) -> None:
        self.rates = rates
        super().__init__(
            rates.shape[1:], dtype=rates.dtype, device=rates.device, validate_args=validate_args
        )

    @property
    def support(self) -> constraints.Constraint:
        return constraints.nonnegative_integer

    def _members(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (..., *batch) as (..., 1, *batch), against rates (M, *batch)."""
        dim = -len(self.batch_shape) - 1
        return x.unsqueeze(dim), self.rates

    def _mean(self, terms: Tensor) -> Tensor:
        return terms.mean(-len(self.batch_shape) - 1)

    def _cdf(self, x: Tensor) -> Tensor:
        count, rate = self._members(x.floor())
        below = torch.special.gammaincc((count + 1).clamp_min(1.0), rate)
        return torch.where(x < 0, 0.0, self._mean(below))

    def _log_prob(self, x: Tensor) -> Tensor:
        count, rate = self._members(x)
        log_p = count * rate.log() - rate - torch.lgamma(count.clamp_min(0) + 1)
        pooled = torch.logsumexp(log_p, -len(self.batch_shape) - 1) - math.log(len(self.rates))
        return torch.where((x < 0) | (x != x.floor()), -math.inf, pooled)

    def _icdf(self, u: Tensor) -> Tensor:
        top = self.rates.amax(0)
        low = torch.full_like(u, -1.0)
        high = (top + 10 * top.sqrt() + 20).ceil().expand_as(u).clone()
        # Rounding may keep F below the largest levels for ever.
        while bool((short := (self._cdf(high) < u) & (high < 100 * top + 1e4)).any()):
            high = torch.where(short, 2 * high, high)
        while bool((high - low > 1).any()):
            middle = ((low + high) / 2).floor()
            reached = self._cdf(middle) >= u
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        return high

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples (*sample_shape, *batch_shape): pick a member, then draw from it."""
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            pick = torch.randint(len(self.rates), shape, device=self.device)
            rate = self.rates.expand(*shape[: len(shape) - self.rates.dim() + 1], *self.rates.shape)
            dim = -len(self.batch_shape) - 1
            return torch.poisson(rate.gather(dim, pick.unsqueeze(dim)).squeeze(dim))

    @property
    def mean(self) -> Tensor:
        return self.rates.mean(0)

    @property
    def variance(self) -> Tensor:
        return self.rates.mean(0) + self.rates.var(0, correction=0)

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        last = float(torch.maximum(self.icdf(torch.ones(())).amax(), x.amax()))
        if not last < MAX_GRID:
            return None
        grid = torch.arange(last + 1, dtype=self.dtype, device=self.device)
        below = self.cdf(self._outer(grid))  # (G, *batch): F on [k, k + 1)
        total = torch.zeros_like(x)
        for k, f in enumerate(below):
            # The step at x may lie inside the cell, and x may be negative.
            share = (x - k).clamp(0.0, 1.0)
            total = total + share * f.square() + (1.0 - share) * (1.0 - f).square()
        return total + (-x).clamp_min(0.0)
