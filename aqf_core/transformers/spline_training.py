"""The spline map and its quantile loss at many levels, with written-out gradients: for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["SplineConstants", "spline_from_base", "spline_pinball"]

Parts = tuple[Tensor, Tensor, Tensor]
Pullback = Callable[[Tensor, Tensor, Tensor], Tensor]


class SplineConstants(NamedTuple):
    """What a family of splines on a fixed grid has in common.

    Attributes:
        growth: (P,), one over the bound of each parameter (anything positive for the location).
        to_knots: (P, 16) with parameters @ to_knots = values of the knots, once secants are
            positive. Only the rows of the secants are not 0; columns without a knot are there
            because narrower products are four times slower.
        bins: number of bins.
        bin_width: width of a bin.
    """

    growth: Tensor
    to_knots: Tensor
    bins: int
    bin_width: float


def spline_from_base(
    z: Tensor, h: Tensor, constants: SplineConstants, reference: Callable[..., Parts]
) -> Parts:
    """Splines at A points each: value, location and logarithm of the scale.

    The outcome is y = location + scale * value; the formulas are those of
    `RationalQuadraticSpline.core`. Recorded operation by operation the gradient costs three times
    as much as the map; here each of the two is some thirty operations, most of them in place.

    Args:
        z: points (N, A), without gradient.
        h: parameters (N, P): location, raw scale, shift, raw zoom, secants, slopes.
        constants: of the family.
        reference: the same function of (z, h) in plain operations, for second derivatives.

    Returns:
        value (N, A), location (N, 1), log scale (N, 1).
    """
    value, loc, log_scale = _SplineFromBase.apply(z, h, constants, reference)
    return value, loc, log_scale


def spline_pinball(
    y: Tensor,
    z: Tensor,
    u: Tensor,
    h: Tensor,
    constants: SplineConstants,
    reference: Callable[..., Tensor],
) -> Tensor:
    """Mean over A levels u = Phi(z) of the pinball loss of y; see `Transformer.pinball`.

    A loss per spline has one number to be differentiated by, so its gradient is computed together
    with it, while everything is in the cache, and the backward pass only scales it.

    Args:
        y: outcomes (N,).
        z, u: base variables and levels (N, A), without gradient.
        h, constants: see `spline_from_base`.
        reference: the same function of (y, z, u, h) in plain operations.

    Returns:
        One loss per spline, (N,).
    """
    loss: Tensor = _SplinePinball.apply(y, z, u, h, constants, reference)
    return loss


class _SplineFromBase(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, h: Tensor, constants: SplineConstants, reference: Any
    ) -> Parts:
        parts, ctx.pullback = _evaluate(z, h, constants)
        ctx.save_for_backward(z, h)
        ctx.reference = reference
        value, loc, log_scale = parts
        return value, loc.unsqueeze(1), log_scale.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None, None]:
        z, h = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            outputs = ctx.reference(z, h)
            (again,) = torch.autograd.grad(outputs, h, grads, create_graph=True)
            return None, again, None, None
        return None, ctx.pullback(grads[0], grads[1][:, 0], grads[2][:, 0]), None, None


class _SplinePinball(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        z: Tensor,
        u: Tensor,
        h: Tensor,
        constants: SplineConstants,
        reference: Any,
    ) -> Tensor:
        (value, loc, log_scale), pullback = _evaluate(z, h, constants)
        # With e = (y - loc) / scale - value, rho_u(e) = u e + max(-e, 0) = g e / 2 for the slope
        # g / 2 = (2 u - 1 + sign e) / 2; the loss is the sum of scale g e / (2 A).
        scale = log_scale.exp()
        error = ((y - loc) / scale).unsqueeze(1) - value
        slope = error.sign().add_(u, alpha=2.0).sub_(1.0)
        ones = slope.new_ones(slope.shape[1])
        weight = scale * (0.5 / slope.shape[1])
        # The derivatives by value, location and log scale are -weight times these.
        by_scale = value.mul_(slope) @ ones
        by_loc = (slope @ ones).div_(scale)
        loss = (error.mul_(slope) @ ones).mul_(weight)
        ctx.save_for_backward(y, z, u, h, pullback(slope, by_loc, by_scale), weight)
        ctx.reference = reference
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y, z, u, h, grad, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[3]]
        if torch.is_grad_enabled():  # a second derivative is wanted
            inputs = [x for x, want in zip((y, h), wanted, strict=True) if want]
            again = iter(
                torch.autograd.grad(ctx.reference(y, z, u, h), inputs, grads[0], create_graph=True)
            )
            by_y, by_h = (next(again) if want else None for want in wanted)
        else:
            by_h = grad * (weight * grads[0]).neg_().unsqueeze(1)
            by_y = -by_h[:, 0]
        return by_y, None, None, by_h, None, None


def _evaluate(z: Tensor, h: Tensor, constants: SplineConstants) -> tuple[Parts, Pullback]:
    """Value (N, A), location (N,) and log scale (N,); the function from their gradients to h's."""
    bins, width = constants.bins, constants.bin_width
    # Bounded values h * shrink with shrink = 1 / (1 + |h| / limit), and their exponentials: all
    # parameters at once, because parts of rows are several times slower.
    shrink = (h.abs() * constants.growth).add_(1.0).reciprocal_()
    bounded = h * shrink
    positive = bounded.exp()
    scale, shift = positive[:, 1], bounded[:, 2]
    stretch = positive[:, 3] / width

    # A point belongs to the knot at its right, which ends the bin that it is in. Left of all knots
    # it is the first one, which ends no bin: r = 0 there, and all that counts is its slope.
    place = torch.addcmul((0.5 * bins - shift * stretch).unsqueeze(1), z, stretch.unsqueeze(1))
    inside = place.clamp(0.0, bins)
    outside = place.sub_(inside)
    knot = inside.ceil()
    k = knot.long()
    r = knot.sub_(inside)
    tables = [positive[:, start : start + bins + 1] for start in (3, 3 + bins, 4 + bins)]
    value = (positive @ constants.to_knots).gather(1, k)
    s, d0, d1 = (table.gather(1, k) for table in tables)

    # With X = s r^2 + d1 q, Y = s (1 - r)^2 + d0 q, q = r (1 - r) and share = X / (X + Y), the map
    # is s * share below the knot, in units of the width; beyond the end knots it is linear.
    q = torch.addcmul(r, r, r, value=-1.0)
    ends = d0 + d1
    denominator = torch.sub(ends, s, alpha=2.0).mul_(q).add_(s)
    near = torch.lerp(d1, s, r)
    share = (near * r).div_(denominator)
    drop = (s * share).addcmul_(outside, d1, value=-1.0)
    value.sub_(drop, alpha=width)
    loc = torch.addcmul(h[:, 0], scale, shift)
    log_scale = bounded[:, 1] - bounded[:, 3]

    def pullback(by_value: Tensor, by_loc: Tensor, by_log_scale: Tensor) -> Tensor:
        # The drop s X / D, D = X + Y, has the derivatives
        #   d/ds = X/D + q (d0 X - d1 Y) / D^2,  d/dd1 = s q Y / D^2,  d/dd0 = -s q X / D^2,
        #   d/dr = s^2 (d1 (1 - r)^2 + 2 s q + d0 r^2) / D^2.
        knots = by_value.new_zeros(len(h), constants.to_knots.shape[1])
        grad = knots.scatter_add_(1, k, by_value) @ constants.to_knots.t()
        g = by_value * -width
        slope = torch.lerp(near, torch.lerp(s, d0, r), r)
        ratio = s / denominator
        by_place = slope.mul_(ratio).mul_(ratio).mul_(g)
        bent = (q / denominator).mul_(g)
        by_s = (ends * share).sub_(d1).mul_(bent).addcmul_(g, share)
        bent.mul_(s)
        by_d0 = share * bent
        by_d1 = bent.sub_(by_d0).addcmul_(g, outside, value=-1.0)
        for start, by in ((3, by_s), (3 + bins, by_d0.neg_()), (4 + bins, by_d1)):
            grad[:, start : start + bins + 1].scatter_add_(1, k, by)
        grad.mul_(positive)
        # place = (z - shift) * stretch + constant, and stretch is proportional to exp(log zoom)
        ones = g.new_ones(g.shape[1])
        moved, lever = (by_place @ ones).mul_(stretch), scale * by_loc
        grad[:, 1] = torch.addcmul(by_log_scale, lever, shift)
        grad[:, 2] = lever + moved
        zoomed = (by_place.mul_(z) @ ones).mul_(stretch)
        grad[:, 3] = torch.addcmul(-by_log_scale, moved, shift).sub_(zoomed)
        grad.mul_(shrink).mul_(shrink)
        grad[:, 0] = by_loc
        return grad

    return (value, loc, log_scale), pullback
