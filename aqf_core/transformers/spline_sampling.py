"""The spline map of one point per spline, without gradients: what sampling spends its time on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["SplineSampler"]


class SplineSampler:
    """Evaluates splines at N points, one spline each, again and again in the same memory.

    For a spline m on a fixed grid, y = location + scale * (shift + m(zoom * (z - shift)) / zoom).
    The formulas are those of `RationalQuadraticSpline.core`. Parameters are rows of memory here
    (feature-major), everything is done in place on contiguous memory, and slopes are bounded only
    where a point needs them. Large tensors made anew for every variable would be returned to the
    system and mapped again, which takes longer than the arithmetic; views are made once, too.

    Args:
        n: number of points N.
        limits: bounds of log scale, shift and log zoom.
        slope_limit: bound of the logarithms of secants and slopes.
        to_knots: (bins + 1, bins) with to_knots @ secants = values of the knots.
        bin_width: width of a bin.
    """

    def __init__(
        self,
        n: int,
        limits: Sequence[float],
        slope_limit: float,
        to_knots: Tensor,
        bin_width: float,
    ) -> None:
        self.n, self.bins, self.bin_width = n, to_knots.shape[1], bin_width
        self.slope_limit, self.to_knots = slope_limit, to_knots
        bounds = to_knots.new_tensor([*limits, *[slope_limit] * self.bins])
        self.growth = (1.0 / bounds)[:, None]
        self.middle = to_knots.new_tensor(0.5 * self.bins)
        # Rows: scale, shift, zoom, secants of the bins, values of the knots.
        table = to_knots.new_empty(3 + 2 * self.bins + 1, n)
        self.rows, self.values = torch.split(table, [3 + self.bins, self.bins + 1])
        self.scale, self.shift, self.zoom = self.rows[:3].unbind()
        self.secants, self.table = self.rows[3:], table.view(-1)
        self.bin, self.slopes = to_knots.new_empty(2, 2, n).unbind()
        self.s, self.b0 = self.bin.unbind()
        self.d0, self.d1 = self.slopes.unbind()
        point = torch.arange(n, dtype=torch.int32, device=to_knots.device)
        # Where secant and value of bin 0 stand in the table, and its two slopes among the slopes.
        self.first = torch.stack([point + 3 * n, point + (3 + self.bins) * n])
        self.ends = torch.stack([point, point + n])
        self.index = torch.empty_like(self.first)
        self.flat_index, self.flat_bin = self.index.view(-1), self.bin.view(-1)
        self.flat_slopes = self.slopes.view(-1)

    def __call__(self, z: Tensor, h: Tensor) -> Tensor:
        """y (N,) at z (N,).

        Args:
            z: points (N,).
            h: rows (P, N): location, raw scale, shift, raw zoom, secants, slopes; contiguous.
        """
        loc, raw, raw_slopes = torch.split(h, [1, 3 + self.bins, self.bins + 1])
        s, d0, d1 = self.s, self.d0, self.d1
        torch.abs(raw, out=self.rows).mul_(self.growth).add_(1.0)
        torch.div(raw, self.rows, out=self.rows)
        shift = self.shift.clone()
        self.rows.exp_()
        torch.mm(self.to_knots, self.secants, out=self.values)

        place = torch.addcmul(self.middle, z - shift, self.zoom, value=1.0 / self.bin_width)
        k = place.clamp(0.0, self.bins - 0.5).int()
        torch.add(self.first, k, alpha=self.n, out=self.index)
        torch.index_select(self.table, 0, self.flat_index, out=self.flat_bin)
        torch.add(self.ends, k, alpha=self.n, out=self.index)
        torch.index_select(raw_slopes.view(-1), 0, self.flat_index, out=self.flat_slopes)
        self.slopes.div_(self.slopes.abs().mul_(1.0 / self.slope_limit).add_(1.0)).exp_()

        t = place.sub_(k).clamp(0.0, 1.0)
        outside = place.sub_(t)
        q = torch.addcmul(t, t, t, value=-1.0)
        denominator = q.mul_((d0 + d1).sub_(s, alpha=2.0)).add_(s)
        rise = torch.lerp(d0, s, t).mul_(t).mul_(s).div_(denominator)
        rise.addcmul_(outside, torch.lerp(d0, d1, t))  # t is 0 or 1 outside the knots
        b = torch.add(self.b0, rise, alpha=self.bin_width)
        return torch.addcmul(loc.view(-1), self.scale, shift.addcdiv_(b, self.zoom))
