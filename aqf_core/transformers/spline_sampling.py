"""The spline map of one point per spline, without gradients: what sampling spends its time on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["bounding_rows", "evaluate_rows"]

LOG2_E = math.log2(math.e)


def bounding_rows(limits: Sequence[float], exponential: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """Constants (rows, 1) such that raw / (start + growth |raw|) is `bounded(raw, limit)`.

    Rows that are exponentiated carry a factor log2(e), because exp2 is faster than exp.
    """
    start = torch.tensor([1.0 / LOG2_E if flag else 1.0 for flag in exponential])
    return start[:, None], (start / torch.tensor(limits))[:, None]


def evaluate_rows(
    z: Tensor, h: Tensor, start: Tensor, growth: Tensor, to_knots: Tensor, bin_width: float
) -> Tensor:
    """y = location + scale * (shift + m(zoom * (z - shift)) / zoom) for a spline m on a fixed grid.

    The formulas are those of `RationalQuadraticSpline.core`. Parameters are rows of memory here
    (feature-major), all of them are bounded and exponentiated together, and everything is done
    in place: half as many operations, each of them on contiguous memory.

    Args:
        z: points (N,).
        h: parameters (N, P) = [location, raw scale, shift, raw zoom, secants, slopes]; fastest if
            it is a transposed view.
        start: see `bounding_rows`, for all parameters but the location.
        growth: see `bounding_rows`.
        to_knots: (bins + 1, bins) with to_knots @ secants = values of the knots.
        bin_width: width of a bin.
    """
    bins = to_knots.shape[1]
    n = z.shape[0]
    loc, raw = h.t()[0], h.t()[1:]
    # Rows: values of the knots; scale, shift, zoom, secants, slopes.
    table = h.new_empty(raw.shape[0] + bins + 1, n)
    values, rows = table[: bins + 1], table[bins + 1 :]
    torch.abs(raw, out=rows).mul_(growth).add_(start)
    torch.div(raw, rows, out=rows)
    shift = rows[1].clone()
    rows.exp2_()
    scale, zoom = rows[0], rows[2]
    torch.mm(to_knots, rows[3 : 3 + bins], out=values)

    place = (z - shift).mul_(zoom).mul_(1.0 / bin_width).add_(0.5 * bins)
    k = place.clamp(0.0, bins - 0.5).int()
    index = torch.arange(n, dtype=torch.int32, device=z.device).add_(k, alpha=n)
    picked = [0, bins + 4, 2 * bins + 4, 2 * bins + 5]  # value, secant and both slopes of bin k
    offset = torch.tensor(picked, dtype=torch.int32, device=z.device).mul_(n)
    index = (offset[:, None] + index).flatten()
    b0, s, d0, d1 = table.flatten().index_select(0, index).view(4, n)

    t = place.sub_(k).clamp(0.0, 1.0)
    outside = place.sub_(t)
    q = torch.addcmul(t, t, t, value=-1.0)
    denominator = (d0 + d1).sub_(s, alpha=2.0).mul_(q).add_(s)
    rise = torch.lerp(d0, s, t).mul_(t).mul_(s).div_(denominator)
    rise.addcmul_(outside, torch.lerp(d0, d1, t))  # t is 0 or 1 outside the knots
    b = rise.mul_(bin_width).add_(b0)
    return b.div_(zoom).add_(shift).mul_(scale).add_(loc)
