"""The spline map of one point per spline, without gradients: for sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .row_sampling import BoundedExp, RowSampler

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
        size, n, bins = len(limits), self.columns[0].numel(), to_knots.shape[1]
        self.n, self.bins, self.bin_width, self.to_knots = n, bins, bin_width, to_knots
        self.middle = z.new_tensor(0.5 * bins)
        # Bounded and positive parameters, and below them the values of the knots.
        table = z.new_empty(size + bins + 1, n)
        rows, self.values = torch.split(table, [size, bins + 1])
        self.exp = BoundedExp(limits, rows)
        _, self.scale, self.raw_shift, self.zoom = rows[:4].unbind()
        self.secants, self.table = rows[4 : 4 + bins], table.view(-1)
        self.shift = torch.empty_like(self.scale)
        # What a point needs of its bin: secant, slopes at both ends, value of the right knot.
        self.bin = z.new_empty(4, n)
        self.flat_bin, self.parts = self.bin.view(-1), self.bin.unbind()
        point = torch.arange(n, dtype=torch.int32, device=z.device)
        starts = (3, 3 + bins, 4 + bins, size)
        self.first = torch.stack([point + start * n for start in starts])
        self.index = torch.empty_like(self.first)
        self.flat_index = self.index.view(-1)

    def evaluate(self, j: int, z: Tensor, h: Tensor) -> None:
        self.exp.bounded(h)
        shift = self.shift.copy_(self.raw_shift)
        self.exp.out.exp_()
        torch.mm(self.to_knots, self.secants, out=self.values)

        place = torch.addcmul(self.middle, z - shift, self.zoom, value=1.0 / self.bin_width)
        inside = place.clamp(0.0, self.bins)
        outside = place.sub_(inside)
        knot = inside.ceil()
        torch.add(self.first, knot.int(), alpha=self.n, out=self.index)
        torch.index_select(self.table, 0, self.flat_index, out=self.flat_bin)
        s, d0, d1, b = self.parts

        r = knot.sub_(inside)
        q = torch.addcmul(r, r, r, value=-1.0)
        denominator = q.mul_(d0.add_(d1).sub_(s, alpha=2.0)).add_(s)
        drop = torch.lerp(d1, s, r).mul_(r).mul_(s).div_(denominator)
        b.sub_(drop.addcmul_(outside, d1, value=-1.0), alpha=self.bin_width)
        torch.addcmul(h[0], self.scale, shift.addcdiv_(b, self.zoom), out=z)
