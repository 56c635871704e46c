r"""A predictive distribution from a table of quantiles.

Rival methods, forecasting baselines and stored predictions come as quantiles at fixed levels; this
turns them into a full distribution: linear between the knots, exponential beyond them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .distributions import ScalarPredictive
from .errors import DomainError, LevelError, ShapeError
from .losses import interpolated_crps
from .validation import check_finite, check_levels, check_tensor, has_values

__all__ = ["InterpolatedPredictive"]


class InterpolatedPredictive(ScalarPredictive):
    r"""Piecewise-linear quantile function through given knots, with exponential tails.

    Between knots Q is linear (the density is constant there); beyond them
    \(Q(u) = q_1 + b_l \log(u/u_1)\) and \(Q(u) = q_K - b_r \log((1-u)/(1-u_K))\), where the scales
    continue the tail through the last two knots.

    Args:
        levels: (K,), strictly increasing inside (0, 1), K >= 2.
        quantiles: (*batch_shape, K), non-decreasing; ties are atoms, where the density is infinite.

    Example:
        >>> u = torch.tensor([0.25, 0.5, 0.75])
        >>> dist = InterpolatedPredictive(u, torch.tensor([[-1.0, 0.0, 1.0]]))
        >>> dist.icdf(torch.tensor(0.625)), dist.cdf(torch.tensor(-0.5))
        (tensor([0.5000]), tensor([0.3750]))
    """

    def __init__(
        self, levels: Tensor, quantiles: Tensor, validate_args: bool | None = None
    ) -> None:
        check_tensor(levels, "levels")
        check_tensor(quantiles, "quantiles")
        if levels.dim() != 1 or quantiles.dim() == 0 or quantiles.shape[-1] != levels.shape[0]:
            raise ShapeError(
                f"levels (K,) and quantiles (..., K) must share K, got {tuple(levels.shape)} and "
                f"{tuple(quantiles.shape)}."
            )
        if levels.shape[0] < 2:
            raise LevelError("interpolation needs at least two levels.")
        if has_values(quantiles):
            check_levels(levels)
            inside = bool(levels[0] > 0) and bool(levels[-1] < 1)
            if not inside or not bool((levels.diff() > 0).all()):
                raise LevelError("levels must increase strictly inside (0, 1).")
            check_finite(quantiles, "quantiles")
            if bool((quantiles.diff(dim=-1) < 0).any()):
                raise DomainError("quantiles must not decrease; sort them over the last dimension.")
        self.levels = levels.to(quantiles)
        self.values = quantiles
        u = self.levels
        log_left, log_right = (u[1] / u[0]).log(), ((1 - u[-2]) / (1 - u[-1])).log()
        self.left_scale = (quantiles[..., 1] - quantiles[..., 0]) / log_left
        self.right_scale = (quantiles[..., -1] - quantiles[..., -2]) / log_right
        super().__init__(
            quantiles.shape[:-1],
            dtype=quantiles.dtype,
            device=quantiles.device,
            validate_args=validate_args,
        )

    def _icdf(self, u: Tensor) -> Tensor:
        levels = self.levels
        index = torch.searchsorted(levels, u.detach().contiguous()) - 1
        index = index.clamp(0, levels.shape[0] - 2)
        low, high = self._at(index, u.shape)
        share = (u - levels[index]) / (levels[index + 1] - levels[index])
        inner = low + share.clamp(0, 1) * (high - low)
        left = self.left_scale * (u / levels[0]).log().clamp_max(0)
        right = self.right_scale * ((1 - levels[-1]) / (1 - u)).log().clamp_min(0)
        return inner + left + right

    def _segment(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Index of the segment that holds x, and its ends."""
        values = self.values.expand(*x.shape, -1) if self.values.dim() > 1 else self.values
        # The right end of a tie is where the CDF, continuous from the right, has its value.
        index = torch.searchsorted(
            values.detach().contiguous(), x.detach().unsqueeze(-1).contiguous(), right=True
        )
        index = (index.squeeze(-1) - 1).clamp(0, values.shape[-1] - 2)
        return (index, *self._at(index, x.shape))

    def _at(self, index: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        values = self.values.expand(*shape, self.values.shape[-1])
        index = index.unsqueeze(-1)
        return values.gather(-1, index).squeeze(-1), values.gather(-1, index + 1).squeeze(-1)

    def _cdf(self, x: Tensor) -> Tensor:
        index, low, high = self._segment(x)
        levels = self.levels
        tiny = torch.finfo(x.dtype).tiny
        share = ((x - low) / (high - low).clamp_min(tiny)).clamp(0, 1)
        share = torch.where(x >= high, 1.0, share)  # at an atom that ends the table
        inner = levels[index] + share * (levels[index + 1] - levels[index])
        below, above = self._beyond(x)
        left = levels[0] * torch.exp(-below / self.left_scale.clamp_min(tiny))
        right = 1 - (1 - levels[-1]) * torch.exp(-above / self.right_scale.clamp_min(tiny))
        return torch.where(below > 0, left, torch.where(above > 0, right, inner))

    def _log_prob(self, x: Tensor) -> Tensor:
        index, low, high = self._segment(x)
        levels = self.levels
        inner = (levels[index + 1] - levels[index]).log() - (high - low).log()
        below, above = self._beyond(x)
        left = levels[0].log() - below / self.left_scale - self.left_scale.log()
        right = (1 - levels[-1]).log() - above / self.right_scale - self.right_scale.log()
        log_prob = torch.where(below > 0, left, torch.where(above > 0, right, inner))
        return torch.where(log_prob.isnan(), -math.inf, log_prob)

    def _beyond(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """How far x lies below the first and above the last knot."""
        return (self.values[..., 0] - x).clamp_min(0), (x - self.values[..., -1]).clamp_min(0)

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        return interpolated_crps(self.levels, self.values, x)
