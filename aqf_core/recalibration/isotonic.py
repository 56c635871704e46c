"""Recalibration by the empirical frequencies themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import DomainError, ShapeError
from ..normal import level_to_base
from ..validation import check_levels
from .base import Recalibration

__all__ = ["IsotonicRecalibration", "isotonic_regression"]

# Least distance of knots in asinh(z): anything closer is one observation to float32.
GAP = 1e-4


class IsotonicRecalibration(Recalibration):
    """Piecewise-linear map through the empirical frequencies, at most `knots` of them.

    The k-th smallest of n PIT values belongs to the probability k / (n + 1). Between knots the map
    is linear in z; beyond the first and the last the tails are shifted along.

    Args:
        knots: upper limit of the number of knots, spread evenly over the observations.
        per_column: see `Recalibration`.

    Example:
        >>> pit = torch.linspace(0.3, 0.7, 999)  # the predictions are far too wide
        >>> recalibrate = IsotonicRecalibration().fit(pit)
        >>> recalibrate.levels(torch.tensor([0.3, 0.5, 0.7]))
        tensor([0.0010, 0.5000, 0.9990])
    """

    def __init__(self, knots: int = 100, per_column: bool = False) -> None:
        super().__init__(per_column)
        if knots < 2:
            raise ShapeError(f"an isotonic map needs at least 2 knots, got {knots}.")
        self.knots = knots

    def _fit(self, z: Tensor) -> None:
        n = z.shape[-1]
        pick = torch.linspace(0, n - 1, min(n, self.knots), dtype=torch.float64).round().long()
        self._set(z[:, pick], (pick.double() + 1) / (n + 1))

    def fit_curve(
        self, levels: Tensor, observed: Tensor, weights: Tensor | None = None
    ) -> IsotonicRecalibration:
        """Fit to a measured calibration curve, which need not be monotone.

        Args:
            levels: predicted levels (K,), strictly inside (0, 1), increasing.
            observed: the share of observations below the quantile of each level (K,).
            weights: how much each point counts (K,).
        """
        check_levels(levels, "levels")
        check_levels(observed, "observed")
        if len(levels) < 2 or levels.shape != observed.shape:
            raise ShapeError(
                f"levels and observed need the same shape (K,), K >= 2, got "
                f"{tuple(levels.shape)} and {tuple(observed.shape)}."
            )
        monotone = isotonic_regression(observed.double(), weights)
        self.per_column = False
        self.observations = len(levels)
        # Frequencies 0 and 1 have no finite base value; half an observation is the usual remedy.
        inside = monotone.clamp(0.5 / (len(levels) + 1), 1 - 0.5 / (len(levels) + 1))
        self._set(level_to_base(levels.double()).unsqueeze(0), inside)
        return self

    def _set(self, z: Tensor, probability: Tensor) -> None:
        w = level_to_base(probability).expand_as(z)
        self._z, self._w = _separate(z), _separate(w)

    def _columns(self) -> int:
        return len(self._z)

    def _to_base(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return _interpolate(z, self._z.to(z), self._w.to(z))

    def _from_base(self, w: Tensor) -> Tensor:
        return _interpolate(w, self._w.to(w), self._z.to(w))[0]


def isotonic_regression(y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""The non-decreasing sequence nearest to y in weighted least squares: (n,).

    Pool adjacent violators: neighbours in the wrong order are replaced by their mean, O(n).

    Example:
        >>> isotonic_regression(torch.tensor([1.0, 3.0, 2.0, 4.0]))
        tensor([1.0000, 2.5000, 2.5000, 4.0000])
    """
    if y.dim() != 1 or len(y) == 0:
        raise ShapeError(f"isotonic regression needs a non-empty vector, got {tuple(y.shape)}.")
    w = torch.ones_like(y) if weights is None else weights.to(y)
    if w.shape != y.shape or bool((w <= 0).any()):
        raise DomainError("weights must be positive and as many as values.")
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(y.tolist(), w.tolist(), strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] >= block[0]:
            mean, total, length = blocks.pop()
            pooled = total + block[1]
            block = ((mean * total + block[0] * block[1]) / pooled, pooled, length + block[2])
        blocks.append(block)
    means = torch.tensor([b[0] for b in blocks], dtype=y.dtype, device=y.device)
    return means.repeat_interleave(torch.tensor([b[2] for b in blocks], device=y.device))


def _separate(x: Tensor) -> Tensor:
    """Sorted knots moved apart, so that the maps between them can be inverted.

    The inverse hyperbolic sine makes the gap absolute near 0 and relative far away.
    """
    ramp = GAP * torch.arange(x.shape[-1], dtype=x.dtype)
    return ((x.asinh() - ramp).cummax(-1).values + ramp).sinh()


def _interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    """Piecewise-linear interpolation of x (C, M) in knots (C, K), slope 1 outside; log slope."""
    index = torch.searchsorted(xs, x.detach()) - 1
    inside = (index >= 0) & (index < xs.shape[-1] - 1)
    index = index.clamp(0, xs.shape[-1] - 2)
    x0, x1 = xs.gather(-1, index), xs.gather(-1, index + 1)
    y0, y1 = ys.gather(-1, index), ys.gather(-1, index + 1)
    slope = (y1 - y0) / (x1 - x0)
    inner = y0 + (x - x0) * slope
    outer = torch.where(x > x1, y1 + (x - x1), y0 + (x - x0))
    return torch.where(inside, inner, outer), torch.where(inside, slope.log(), 0.0)
