"""Monotone rational-quadratic splines in z = Phi^-1(u): the default transformer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .base import Direction, Transformer, bounded, by_rows

__all__ = ["RationalQuadraticSpline"]

LOG_SLOPE_LIMIT = 8.0


class Knots(NamedTuple):
    """One spline per leading index."""

    position: Tensor | None  # a of each knot (..., bins + 1), or None for the fixed grid
    value: Tensor  # b of each knot (..., bins + 1)
    secant: Tensor  # mean slope of each bin (..., bins)
    slope: Tensor  # slope at each knot (..., bins + 1)


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
        super().__init__(2 * bins + 1 + (bins if widths else 0), direction)
        self.bins, self.bound, self.learn_widths = bins, bound, widths
        self.bin_width = 2.0 * bound / bins
        # increments @ anchored = knots, with 0 at the middle knot.
        cell, knot, centre = torch.arange(bins)[:, None], torch.arange(bins + 1), bins // 2
        right = (cell >= centre) & (cell < knot)
        left = (cell < centre) & (cell >= knot)
        self.register_buffer("anchored", right.float() - left.float(), persistent=False)

    def prepare(self, shape: Tensor) -> Knots:
        bins = self.bins
        positive = bounded(shape, LOG_SLOPE_LIMIT).exp()
        secant, slope = positive[..., :bins], positive[..., bins : 2 * bins + 1]
        to_knots = self.bin_width * self.anchored.to(shape.dtype)
        if not self.learn_widths:
            return Knots(None, secant @ to_knots, secant, slope)
        width = positive[..., 2 * bins + 1 :]
        return Knots(width @ to_knots, (width * secant) @ to_knots, secant, slope)

    def core(self, a: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        if shape.position is None:
            a, (value, secant, slopes), restore = by_rows(
                a, [shape.value, shape.secant, shape.slope]
            )
            # Position in units of bins; the gradient flows through t only.
            place = (a * (1.0 / self.bin_width) + 0.5 * self.bins).clamp(0.0, float(self.bins))
            k = place.detach().clamp(max=self.bins - 0.5).long()
            w: Tensor | float = self.bin_width
            t = place - k
            outside = a - a.clamp(-self.bound, self.bound)
        else:
            tables = [shape.value, shape.secant, shape.slope, shape.position]
            a, (value, secant, slopes, position), restore = by_rows(a, tables)
            k = _find_bin(a, position)
            start, stop = position.gather(-1, k), position.gather(-1, k + 1)
            w = stop - start
            inside = torch.maximum(torch.minimum(a, stop), start)
            t, outside = (inside - start) / w, a - inside
        b0, s = value.gather(-1, k), secant.gather(-1, k)
        d0, d1 = slopes.gather(-1, k), slopes.gather(-1, k + 1)
        q = t * (1.0 - t)
        inverse = 1.0 / (s + (d0 + d1 - 2.0 * s) * q)
        b = b0 + w * s * (s * t * t + d0 * q) * inverse
        b = b + outside.clamp(min=0.0) * d1 + outside.clamp(max=0.0) * d0
        return restore(b), restore(_log_slope(t, s, d0, d1, inverse)) if slope else None

    def core_inverse(self, b: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        tables = [shape.value, shape.secant, shape.slope]
        if shape.position is not None:
            tables.append(shape.position)
        b, (value, secant, slopes, *positions), restore = by_rows(b, tables)
        k = _find_bin(b, value)
        b0, s = value.gather(-1, k), secant.gather(-1, k)
        d0, d1 = slopes.gather(-1, k), slopes.gather(-1, k + 1)
        start: Tensor | None = None
        w: Tensor | float = self.bin_width
        if positions:
            start = positions[0].gather(-1, k)
            w = positions[0].gather(-1, k + 1) - start
        height = w * s
        inside = torch.minimum((b - b0).clamp(min=0.0), height)
        outside, share = b - b0 - inside, inside / height
        # m(a) = b is a quadratic in t; this form of its root never cancels.
        excess = share * (d0 + d1 - 2.0 * s)
        half = d0 - excess
        root = (half * half + 4.0 * (s - d0 + excess) * s * share).clamp(min=TINY).sqrt()
        t = (2.0 * s * share / (half + root)).clamp(0.0, 1.0)
        a = w * t + start if start is not None else (t + k) * self.bin_width - self.bound
        a = a + outside.clamp(min=0.0) / d1 + outside.clamp(max=0.0) / d0
        if not slope:
            return restore(a), None
        inverse = 1.0 / (s + (d0 + d1 - 2.0 * s) * (t * (1.0 - t)))
        return restore(a), restore(-_log_slope(t, s, d0, d1, inverse))

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


def _log_slope(t: Tensor, s: Tensor, d0: Tensor, d1: Tensor, inverse: Tensor) -> Tensor:
    """log m'(a) = log(s^2 (d1 t^2 + 2 s t (1 - t) + d0 (1 - t)^2) / (s + ...)^2)."""
    r = 1.0 - t
    return (d1 * t * t + 2.0 * s * t * r + d0 * r * r).log() + 2.0 * (s * inverse).log()
