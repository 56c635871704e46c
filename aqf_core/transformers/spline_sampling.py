"""The spline map of one point per spline, without gradients: for sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .row_sampling import Bounded, RowSampler

__all__ = ["SplineSampler"]


class SplineSampler(RowSampler):
    """y = location + scale * (shift + m(zoom * (z - shift)) / zoom) for splines m on a fixed grid.

    The formulas are those of `spline_training`, from which the order of the tables is taken, too.

    Args:
        z: base variables (d, *B), see `RowSampler`.
        limits: bound of each parameter: location (any), log scale, shift, log zoom, logarithms of
            the secants and the slopes.
        to_knots: (bins + 1, bins) with to_knots @ secants = values of the knots.
        bin_width: width of a bin.
    """

    def __init__(
        self, z: Tensor, limits: Sequence[float], to_knots: Tensor, bin_width: float
    ) -> None:
        super().__init__(z)
        size, n, bins = len(limits), self.n, to_knots.shape[1]
        self.bins, self.bin_width, self.to_knots = bins, bin_width, to_knots
        self.middle = z.new_tensor(0.5 * bins)
        # Bounded parameters without the location, and below them the values of the knots.
        table = z.new_empty(size + bins, n)
        rows, self.values = torch.split(table, [size - 1, bins + 1])
        self.bounded = Bounded(limits[1:], rows)
        self.scale, self.shift, self.zoom = rows[:3].unbind()
        self.positive, self.secants = rows[2:], rows[3 : 3 + bins]
        # What a point needs of its bin: secant, slopes at both ends, value of the right knot.
        bin_parts, scratch = torch.split(z.new_empty(8, n), 4)
        self.table, self.flat_bin = table.view(-1), bin_parts.view(-1)
        self.parts, self.scratch = bin_parts.unbind(), scratch.unbind()
        point = torch.arange(n, dtype=torch.int32, device=z.device)
        starts = point.new_tensor([2, 2 + bins, 3 + bins, size - 1])
        self.first = point + n * starts.unsqueeze(1)
        self.knot, self.index = torch.empty_like(self.first[0]), torch.empty_like(self.first)
        self.flat_index = self.index.view(-1)

    def evaluate(self, j: int, z: Tensor, h: Tensor) -> None:
        a, b, c, shifted = self.scratch
        self.bounded(h[1:])
        self.positive.exp_()
        torch.mm(self.to_knots, self.secants, out=self.values)

        torch.sub(z, self.shift, out=shifted)
        place = torch.addcmul(self.middle, shifted, self.zoom, value=1.0 / self.bin_width, out=a)
        inside = torch.clamp(place, 0.0, self.bins, out=b)
        outside = place.sub_(inside)
        knot = torch.ceil(inside, out=c)
        r = torch.sub(knot, inside, out=b)
        torch.add(self.first, self.knot.copy_(knot), alpha=self.n, out=self.index)
        torch.index_select(self.table, 0, self.flat_index, out=self.flat_bin)
        s, d0, d1, value = self.parts

        q = torch.addcmul(r, r, r, value=-1.0, out=c)
        denominator = q.mul_(d0.add_(d1).sub_(s, alpha=2.0)).add_(s)
        drop = torch.lerp(d1, s, r, out=d0).mul_(r).mul_(s).div_(denominator)
        value.sub_(drop.addcmul_(outside, d1, value=-1.0), alpha=self.bin_width)
        value = self.shift.addcdiv_(value, self.zoom)
        torch.addcmul(h[0], self.scale.exp_(), value, out=z)
