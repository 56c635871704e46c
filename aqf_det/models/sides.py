"""Residuals of box sides: the variable in which a box's Gaussian is N(0, 1) and a flow is trained.

With the point box x̂ and the standard deviation sigma of a side (both in pixels) the residual is

    r = (x - x̂) / sigma,

increasing in x, free of scale, and exactly N(0, 1) under the stage-1 Gaussian. Quantiles of r are
quantiles of x, side by side.

A linear map cannot keep x1 below x2. ``valid=True`` bends it where a side comes near the centre c
of the point box: with rho = (distance from c) / (distance of the point side from c) and the margin
e = 0.1

    x - x̂ ~ rho - 1                      for rho >= e     (the same linear map)
    x - x̂ ~ e - 1 + e log(rho / e)        for rho < e      (never reaches the centre).

Both pieces meet with equal slope. Every sample then has x1 < c_x < x2 and y1 < c_y < y2, and the
law is still exactly the Gaussian wherever a side keeps a tenth of its distance from the centre.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .coder import OUTWARD

MARGIN = 0.1
#: No side comes closer to the centre than this share of its distance, nor than float32 can tell
#: apart at the centre's coordinate: opposite sides never touch. Observed sides beyond the centre of
#: a badly placed point box count as this close to it.
SMALLEST_RATIO = 1e-4
RESOLUTION = 1e-6


@dataclass(frozen=True)
class Sides:
    """The map between residuals and pixels for a batch of boxes.

    Attributes:
        mean: (..., 4) point boxes, xyxy.
        sigma: (..., 4) stage-1 standard deviations in the same unit.
        valid: Whether residuals always map to boxes with positive width and height.
    """

    mean: Tensor
    sigma: Tensor
    valid: bool = False

    def to_pixels(self, residual: Tensor) -> Tensor:
        """Residuals (..., 4), broadcast against the boxes -> coordinates."""
        if not self.valid:
            return self.mean + self.sigma * residual
        sign, centre, reach, nearest = self._frame()
        v = sign * residual * self.sigma / reach
        # The clamp keeps the unused branch finite, so that its gradient is zero and not NaN.
        inner = MARGIN * torch.exp((v.clamp_max(MARGIN - 1) + 1 - MARGIN) / MARGIN)
        ratio = torch.where(v >= MARGIN - 1, 1 + v, inner).maximum(nearest)
        return centre + sign * reach * ratio

    def to_residual(self, x: Tensor) -> Tensor:
        """Coordinates (..., 4) -> residuals."""
        return self.to_residual_and_slope(x)[0]

    def to_residual_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates (..., 4) -> residuals and log dr/dx."""
        if not self.valid:
            residual = (x - self.mean) / self.sigma
            return residual, (-self.sigma.log()).expand_as(residual)
        sign, centre, reach, nearest = self._frame()
        ratio = (sign * (x - centre) / reach).maximum(nearest)
        log_inner = (ratio.clamp_max(MARGIN) / MARGIN).log()
        v = torch.where(ratio >= MARGIN, ratio - 1, MARGIN - 1 + MARGIN * log_inner)
        return sign * v * reach / self.sigma, -log_inner - self.sigma.log()

    def _frame(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Outward sign, centre and distance of each side of the point box; its smallest ratio."""
        low, high = self.mean[..., :2], self.mean[..., 2:]
        centre = ((low + high) / 2).repeat(*[1] * (low.dim() - 1), 2)
        reach = ((high - low) / 2).clamp_min(1e-6).repeat(*[1] * (low.dim() - 1), 2)
        nearest = (RESOLUTION * (1 + centre.abs()) / reach).clamp_min(SMALLEST_RATIO)
        return self.mean.new_tensor(OUTWARD), centre, reach, nearest

    def __getitem__(self, index: object) -> Sides:
        return Sides(self.mean[index], self.sigma[index], self.valid)  # type: ignore[index]
