"""The spline map of many levels per spline, with a written-out gradient: for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["SplineConstants", "spline_from_base"]

Parts = tuple[Tensor, Tensor, Tensor]


class SplineConstants(NamedTuple):
    """What a family of splines on a fixed grid has in common.

    Attributes:
        growth: (P,), one over the bound of each parameter (anything positive for the location).
        to_knots: (P, 16) with parameters @ to_knots = values of the knots at which a bin begins,
            once secants are positive. Only the rows of the secants are not 0; columns without a
            bin are there because narrower products are four times slower.
        bins: number of bins.
        bin_width: width of a bin.
        reference: the same map of (z, h) in terms of plain operations, for second derivatives.
    """

    growth: Tensor
    to_knots: Tensor
    bins: int
    bin_width: float
    reference: Callable[[Tensor, Tensor], Parts]


def spline_from_base(z: Tensor, h: Tensor, constants: SplineConstants) -> Parts:
    """Splines at A points each: value, location and logarithm of the scale.

    The outcome is y = location + scale * value; the formulas are those of
    `RationalQuadraticSpline.core`. Recorded operation by operation the gradient costs three times
    as much as the map; here each of the two is some thirty operations, most of them in place.

    Args:
        z: points (N, A), without gradient.
        h: parameters (N, P): location, raw scale, shift, raw zoom, secants, slopes.
        constants: of the family.

    Returns:
        value (N, A), location (N, 1), log scale (N, 1).
    """
    value, loc, log_scale = _SplineFromBase.apply(z, h, constants)
    return value, loc, log_scale


class _SplineFromBase(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, h: Tensor, constants: SplineConstants) -> Parts:
        bins, width = constants.bins, constants.bin_width
        # Bounded values h * shrink with shrink = 1 / (1 + |h| / limit), and their exponentials: all
        # parameters at once, because parts of rows are several times slower.
        shrink = (h.abs() * constants.growth).add_(1.0).reciprocal_()
        bounded = h * shrink
        positive = bounded.exp()
        _, secants, slopes = torch.split(positive, [4, bins, bins + 1], 1)
        values = positive @ constants.to_knots
        scale, shift = positive[:, 1], bounded[:, 2]

        stretch = positive[:, 3] / width
        place = torch.addcmul((0.5 * bins - shift * stretch)[:, None], z, stretch[:, None])
        first = place.clamp(0.0, bins - 0.5).floor_()
        k = first.long()
        b0, s, d0 = values.gather(1, k), secants.gather(1, k), slopes.gather(1, k)
        d1 = slopes[:, 1:].gather(1, k)

        t = place.sub_(first).clamp(0.0, 1.0)
        outside = place.sub_(t)
        q = torch.addcmul(t, t, t, value=-1.0)
        denominator = (d0 + d1).sub_(s, alpha=2.0).mul_(q).add_(s)
        low = torch.lerp(d0, s, t).mul_(t)  # s t^2 + d0 t (1 - t)
        rise = (low * s).div_(denominator)
        # Outside the knots t is 0 or 1, and the tail has the slope of that knot.
        rise.addcmul_(outside, torch.lerp(d0, d1, t))
        value = b0.add_(rise, alpha=width)
        ctx.save_for_backward(z, h)
        ctx.constants = constants
        ctx.by_spline = shrink, positive, scale, shift, stretch
        ctx.by_point = k, t, outside, q, s, d0, d1, denominator, low
        return (
            value,
            torch.addcmul(h[:, 0], scale, shift)[:, None],
            (bounded[:, 1] - bounded[:, 3])[:, None],
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        z, h = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            outputs = ctx.constants.reference(z, h)
            (again,) = torch.autograd.grad(outputs, h, grads, create_graph=True)
            return None, again, None
        shrink, positive, scale, shift, stretch = ctx.by_spline
        k, t, outside, q, s, d0, d1, denominator, low = ctx.by_point
        to_knots, bins, width = ctx.constants[1:4]
        value, loc, log_scale = grads[0], grads[1][:, 0], grads[2][:, 0]

        # With X = s t^2 + d0 q, Y = s (1 - t)^2 + d1 q and D = X + Y, rise = s X / D has slopes
        #   d/ds = X / D + q (d1 X - d0 Y) / D^2,  d/dd0 = s q Y / D^2,  d/dd1 = -s q X / D^2,
        #   d/dt = s^2 ((1 - t) (d0 (1 - t) + s t) + t (s (1 - t) + d1 t)) / D^2;
        # the last is also the slope of the tails, where t is 0 or 1.
        high = denominator - low
        g = value * width
        inverse = denominator.reciprocal()
        share = g * inverse
        bent = (share * inverse).mul_(q)
        grad_s = (d1 * low).addcmul_(d0, high, value=-1.0).mul_(bent).addcmul_(share, low)
        bent.mul_(s)
        tail = g.mul_(outside)
        grad_d1 = tail * t
        grad_d0 = tail.sub_(grad_d1).addcmul_(bent, high)
        grad_d1.addcmul_(bent, low, value=-1.0)
        slope = torch.lerp(torch.lerp(d0, s, t), torch.lerp(s, d1, t), t)
        grad_place = slope.mul_(share).mul_(inverse.mul_(s)).mul_(s)

        grad_values = value.new_zeros(len(h), to_knots.shape[1]).scatter_add_(1, k, value)
        grad = grad_values @ to_knots.t()
        _, grad_secants, grad_slopes = torch.split(grad, [4, bins, bins + 1], 1)
        grad_secants.scatter_add_(1, k, grad_s)
        grad_slopes.scatter_add_(1, k, grad_d0)
        grad_slopes[:, 1:].scatter_add_(1, k, grad_d1)
        grad.mul_(positive)
        ones = value.new_ones(value.shape[1])
        moved, lever = grad_place @ ones * stretch, scale * loc
        grad[:, 1] = torch.addcmul(log_scale, lever, shift)
        grad[:, 2] = lever - moved
        # place = (z - shift) * stretch + constant, and stretch is proportional to exp(log zoom)
        grad[:, 3] = (grad_place.mul_(z) @ ones * stretch).sub_(moved * shift).sub_(log_scale)
        grad.mul_(shrink).mul_(shrink)
        grad[:, 0] = loc
        return None, grad, None
