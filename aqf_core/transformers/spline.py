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

    position: Tensor | None  # a of each knot (..., bins + 1), or None for the fixed grid
    value: Tensor  # b of each knot (..., bins + 1)
    secant: Tensor  # mean slope of each bin (..., bins)
    raw_slope: Tensor  # unbounded logarithm of the slope at each knot (..., bins + 1)


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
        sizes = [bins, bins + 1, bins] if self.learn_widths else [bins, bins + 1]
        raw_secant, slope, *raw_width = torch.split(shape, sizes, -1)
        secant = exp_bounded(raw_secant, LOG_SLOPE_LIMIT)
        to_knots = self.bin_width * self.anchored.to(shape.dtype)
        if not raw_width:
            return Knots(None, secant @ to_knots, secant, slope)
        width = exp_bounded(raw_width[0], LOG_SLOPE_LIMIT)
        return Knots(width @ to_knots, (width * secant) @ to_knots, secant, slope)

    def core(self, a: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        tables = [shape.value, shape.secant, shape.raw_slope]
        if shape.position is not None:
            tables.append(shape.position)
        a, (value, secant, slopes, *positions), restore = by_rows(a, tables)
        if positions:
            k = _find_bin(a, positions[0])
            start, stop = positions[0].gather(-1, k), positions[0].gather(-1, k + 1)
            w: Tensor | float = stop - start
            inside = torch.maximum(torch.minimum(a, stop), start)
            t, outside = (inside - start) / w, a - inside
        else:
            # Position in units of bins; the gradient flows through t only.
            w = self.bin_width
            place = a * (1.0 / w) + 0.5 * self.bins
            inside = place.clamp(0.0, float(self.bins))
            first = inside.detach().clamp(max=self.bins - 0.5).floor()
            k, t, outside = first.long(), inside - first, (place - inside) * w
        b0, s = value.gather(-1, k), secant.gather(-1, k)
        d0, d1 = _slopes_at(slopes, k)
        denominator = _denominator(t, s, d0, d1)
        b = b0 + w * (s * t * torch.lerp(d0, s, t) / denominator)
        b = torch.addcmul(b, outside, torch.where(t > 0.5, d1, d0))
        return restore(b), restore(_log_slope(t, s, d0, d1, denominator)) if slope else None

    def core_inverse(self, b: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        tables = [shape.value, shape.secant, shape.raw_slope]
        if shape.position is not None:
            tables.append(shape.position)
        b, (value, secant, slopes, *positions), restore = by_rows(b, tables)
        k = _find_bin(b, value)
        b0, s = value.gather(-1, k), secant.gather(-1, k)
        d0, d1 = _slopes_at(slopes, k)
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
        t = 2.0 * s * share / (half + root)
        # Rounding may leave [0, 1]; the gradient must not notice.
        t = t + (t.clamp(0.0, 1.0) - t).detach()
        a = w * t + start if start is not None else (t + k) * self.bin_width - self.bound
        a = a + outside / torch.where(t > 0.5, d1, d0)
        if not slope:
            return restore(a), None
        return restore(a), restore(-_log_slope(t, s, d0, d1, _denominator(t, s, d0, d1)))

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


def _denominator(t: Tensor, s: Tensor, d0: Tensor, d1: Tensor) -> Tensor:
    """s + (d0 + d1 - 2 s) t (1 - t)."""
    return torch.addcmul(s, torch.sub(d0 + d1, s, alpha=2.0), t * (1.0 - t))


def _log_slope(t: Tensor, s: Tensor, d0: Tensor, d1: Tensor, denominator: Tensor) -> Tensor:
    """log m'(a) = log(s^2 (d1 t^2 + 2 s t (1 - t) + d0 (1 - t)^2) / (s + ...)^2)."""
    # The quadratic form, written as two interpolations.
    mean = torch.lerp(torch.lerp(d0, s, t), torch.lerp(s, d1, t), t)
    return mean.log() + 2.0 * (s / denominator).log()
