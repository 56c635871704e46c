"""Monotone rational-quadratic splines in z = Phi^-1(u): the default transformer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .base import Direction, Transformer, by_rows
from .positive import exp_bounded

__all__ = ["RationalQuadraticSpline"]

LOG_SLOPE_LIMIT = 8.0


class Knots(NamedTuple):
    """One spline per leading index."""

    value: Tensor  # b of each knot (..., bins + 1)
    secant: Tensor  # mean slope of each bin (..., bins)
    raw_slope: Tensor  # unbounded logarithm of the slope at each knot (..., bins + 1)
    position: Tensor | None = None  # a of each knot (..., bins + 1); None for the fixed grid
    width: Tensor | None = None  # of each bin (..., bins); None for the fixed grid


class RationalQuadraticSpline(Transformer):
    """Rational-quadratic monotone spline with linear tails; both directions in closed form.

    Inside bin k, with t = (a - a_k) / w_k in [0, 1], mean slope s = (b_{k+1} - b_k) / w_k and
    slopes d_k, d_{k+1} at its ends (Gregory & Delbourgo 1982),

        m(a) = b_k + w_k s (s t^2 + d_k t (1 - t)) / (s + (d_k + d_{k+1} - 2 s) t (1 - t)),

    outside the knots it continues with slopes d_0 and d_bins. Anchored at m(0) = 0, so in the
    quantile direction the location is the median. Zero parameters give the identity.

    Args:
        direction: "quantile" or "cdf".
        bins: number of bins, even.
        bound: the knots of the identity span [-bound, bound].
        learn_widths: whether the positions of the knots in a are learned, too; by default only in
            the CDF direction, where they are positions in outcome space.

    Example:
        >>> spline = RationalQuadraticSpline()
        >>> h = torch.randn(5, spline.n_params)
        >>> y = spline.quantile(torch.tensor([[0.1], [0.5], [0.9]]), h)  # (3, 5)
        >>> bool((y[1:] > y[:-1]).all()), bool(torch.allclose(y[1], h[:, 0]))
        (True, True)
        >>> spline.cdf(y, h)[:, 0]
        tensor([0.1000, 0.5000, 0.9000])
    """

    closed_inverse = True
    anchored: Tensor

    def __init__(
        self,
        direction: Direction = "quantile",
        bins: int = 12,
        bound: float = 3.0,
        learn_widths: bool | None = None,
    ) -> None:
        if bins < 2 or bins % 2 or bound <= 0:
            raise ValueError(f"bins must be even and bound positive, got {bins} and {bound}.")
        widths = direction == "cdf" if learn_widths is None else learn_widths
        super().__init__((bins, bins + 1, bins) if widths else (bins, bins + 1), direction)
        self.bins, self.bound, self.learn_widths = bins, bound, widths
        self.bin_width = 2.0 * bound / bins
        # increments @ anchored = knots, with 0 at the middle knot.
        cell, knot, centre = torch.arange(bins)[:, None], torch.arange(bins + 1), bins // 2
        right = (cell >= centre) & (cell < knot)
        left = (cell < centre) & (cell >= knot)
        self.register_buffer("anchored", right.float() - left.float(), persistent=False)

    def prepare(self, *raw: Tensor) -> Knots:
        raw_secant, raw_slope, *raw_width = raw
        secant = exp_bounded(raw_secant, LOG_SLOPE_LIMIT)
        anchored = self.anchored.to(secant.dtype)
        if not raw_width:
            return Knots(secant @ (self.bin_width * anchored), secant, raw_slope)
        width = self.bin_width * exp_bounded(raw_width[0], LOG_SLOPE_LIMIT)
        return Knots((width * secant) @ anchored, secant, raw_slope, width @ anchored, width)

    def core(self, a: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        a, (value, secant, raw_slope, *grid), restore = by_rows(
            a, [t for t in shape if t is not None]
        )
        if grid:
            k = _find_bin(a, grid[0])
            w: Tensor | float = grid[1].gather(-1, k)
            place = (a - grid[0].gather(-1, k)) / w
        else:
            w = self.bin_width
            place = a * (1.0 / w) + 0.5 * self.bins
            first = place.detach().clamp(0.0, self.bins - 0.5).floor()
            k, place = first.long(), place - first
        b0, s = value.gather(-1, k), secant.gather(-1, k)
        d0, d1 = _slopes_at(raw_slope, k)
        # Everything below is chosen for few passes over memory, forwards and backwards.
        t = place.clamp(0.0, 1.0)
        q, denominator = _denominator(t, s, d0, d1)
        rise = s * torch.addcmul(s * (t * t), d0, q) / denominator
        tail = (place - t).clamp(min=0.0) * d1 + (place - t).clamp(max=0.0) * d0
        b = b0 + w * (rise + tail)
        return restore(b), restore(_log_slope(t, s, d0, d1, denominator)) if slope else None

    def core_inverse(self, b: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        b, (value, secant, raw_slope, *grid), restore = by_rows(
            b, [t for t in shape if t is not None]
        )
        k = _find_bin(b, value)
        s = secant.gather(-1, k)
        d0, d1 = _slopes_at(raw_slope, k)
        w = grid[1].gather(-1, k) if grid else self.bin_width
        place = (b - value.gather(-1, k)) / (w * s)
        share = place.clamp(0.0, 1.0)
        # m(a) = b is a quadratic in t; this form of its root never cancels.
        excess = share * (d0 + d1 - 2.0 * s)
        half = d0 - excess
        root = (half * half + 4.0 * (s - d0 + excess) * s * share).clamp(min=TINY).sqrt()
        t = 2.0 * s * share / (half + root)
        # Rounding may leave [0, 1]; the gradient must not notice.
        t = t + (t.clamp(0.0, 1.0) - t).detach()
        outside = s * (place - share)
        position = t + outside.clamp(min=0.0) / d1 + outside.clamp(max=0.0) / d0
        if grid:
            a = grid[0].gather(-1, k) + w * position
        else:
            a = (position + k) * self.bin_width - self.bound
        if not slope:
            return restore(a), None
        return restore(a), restore(-_log_slope(t, s, d0, d1, _denominator(t, s, d0, d1)[1]))

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, bins={self.bins}, bound={self.bound}, "
            f"learn_widths={self.learn_widths}"
        )


TINY = 1e-30


def _find_bin(x: Tensor, knots: Tensor) -> Tensor:
    """Index (..., A) of the bin of each point; points outside get the first or last bin.

    A loop over the few inner knots is several times faster than a broadcast comparison, and unlike
    searchsorted it works under vmap.
    """
    inner = knots.detach()[..., 1:-1].unsqueeze(-2).unbind(-1)
    x = x.detach()
    k = (x >= inner[0]).long()
    for knot in inner[1:]:
        k = k + (x >= knot)
    return k


def _slopes_at(raw: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes at both ends of bin k (..., A), given raw slopes (..., bins + 1)."""
    if 2 * k.shape[-1] < raw.shape[-1]:  # few points per spline: skip the slopes nobody needs
        raw0, raw1 = raw.gather(-1, k), raw.gather(-1, k + 1)
        return exp_bounded(raw0, LOG_SLOPE_LIMIT), exp_bounded(raw1, LOG_SLOPE_LIMIT)
    slope = exp_bounded(raw, LOG_SLOPE_LIMIT)
    return slope.gather(-1, k), slope.gather(-1, k + 1)


def _denominator(t: Tensor, s: Tensor, d0: Tensor, d1: Tensor) -> tuple[Tensor, Tensor]:
    """q = t (1 - t) and s + (d0 + d1 - 2 s) q, as a sum of positive terms."""
    q = torch.addcmul(t, t, t, value=-1.0)
    return q, torch.addcmul(s * (1.0 - 2.0 * q), d0 + d1, q)


def _log_slope(t: Tensor, s: Tensor, d0: Tensor, d1: Tensor, denominator: Tensor) -> Tensor:
    """log m'(a) = log(s^2 (d1 t^2 + 2 s t (1 - t) + d0 (1 - t)^2) / (s + ...)^2)."""
    # The quadratic form, written as two interpolations.
    mean = torch.lerp(torch.lerp(d0, s, t), torch.lerp(s, d1, t), t)
    return mean.log() + 2.0 * (s / denominator).log()
