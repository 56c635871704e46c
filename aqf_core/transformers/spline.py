"""Monotone rational-quadratic splines in z = Phi^-1(u): the default transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..validation import tracing
from .base import LOG_SCALE_LIMIT, LOG_ZOOM_LIMIT, SHIFT_LIMIT, Direction, Transformer
from .knots import anchored_sum, by_rows, clamp_to_bin, find_bin
from .positive import exp_bounded
from .spline_sampling import SplineSampler
from .spline_training import SplineConstants, spline_from_base, spline_pinball

__all__ = ["RationalQuadraticSpline"]

LOG_SLOPE_LIMIT = 6.0


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

    outside the knots it continues with slopes d_0 and d_bins. The knots form an even grid which
    slides with the parameters (see `Transformer`). Zero parameters give the identity.

    Args:
        direction: "quantile" or "cdf".
        bins: number of bins, even.
        bound: the knots of the identity span [-bound, bound].
        learn_widths: whether the width of each bin is learned, too; by default only in the CDF
            direction, where it is a width in outcome space.

    Example:
        >>> spline = RationalQuadraticSpline()
        >>> h = torch.randn(5, spline.n_params)
        >>> y = spline.quantile(torch.tensor([[0.1], [0.5], [0.9]]), h)  # (3, 5)
        >>> bool((y[1:] > y[:-1]).all())
        True
        >>> spline.cdf(y, h)[:, 0]
        tensor([0.1000, 0.5000, 0.9000])
    """

    closed_inverse = True
    sliding = True
    anchored: Tensor

    def __init__(
        self,
        direction: Direction = "quantile",
        bins: int = 8,
        bound: float = 2.5,
        learn_widths: bool | None = None,
    ) -> None:
        if bins < 2 or bins % 2 or bound <= 0:
            raise ValueError(f"bins must be even and bound positive, got {bins} and {bound}.")
        widths = direction == "cdf" if learn_widths is None else learn_widths
        super().__init__((bins, bins + 1, bins) if widths else (bins, bins + 1), direction)
        self.bins, self.bound, self.learn_widths = bins, bound, widths
        self.bin_width = 2.0 * bound / bins
        self.register_buffer("anchored", anchored_sum(bins), persistent=False)

    def sampler(self, z: Tensor) -> Callable[[int, Tensor], None]:
        n = z[0].numel()
        fits_int32 = 0 < (self.n_params + self.bins + 1) * n < 2**31
        if self.direction == "cdf" or self.learn_widths or not fits_int32:
            return super().sampler(z)
        to_knots = (self.bin_width * self.anchored).t().to(z.dtype)
        return SplineSampler(z, self._limits(), to_knots, self.bin_width)

    def standard_from_base(
        self, z: Tensor, h: Tensor, slope: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        if slope or h.dim() < 3 or h.shape[-2] != 1 or not self._written_out(z, h.squeeze(-2)):
            return super().standard_from_base(z, h, slope)

        def reference(z: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            plain = super(RationalQuadraticSpline, self).standard_from_base(z, h.unsqueeze(-2))
            return plain[0], plain[2], plain[3]

        value, loc, log_scale = spline_from_base(
            z.reshape(-1, z.shape[-1]), h.reshape(-1, self.n_params), self._constants(), reference
        )
        one = (*z.shape[:-1], 1)
        return value.reshape(z.shape), None, loc.reshape(one), log_scale.reshape(one)

    def pinball(self, y: Tensor, z: Tensor, u: Tensor, h: Tensor) -> Tensor:
        if not (self._written_out(z, h) and y.shape == z.shape[:-1] and u.shape == z.shape):
            return super().pinball(y, z, u, h)
        levels = z.shape[-1]
        loss = spline_pinball(
            y.reshape(-1),
            z.reshape(-1, levels),
            u.reshape(-1, levels),
            h.reshape(-1, self.n_params),
            self._constants(),
            super().pinball,
        )
        return loss.reshape(y.shape)

    def _written_out(self, z: Tensor, h: Tensor) -> bool:
        """Whether gradients by h (..., P) of the map at z (..., A) are wanted and written out."""
        return (
            self.direction == "quantile"
            and not self.learn_widths
            and h.requires_grad
            and not z.requires_grad
            and torch.is_grad_enabled()
            and not tracing()
            and z.dim() > 1
            and h.shape == (*z.shape[:-1], self.n_params)
            and z.dtype == h.dtype == self.anchored.dtype
        )

    def _limits(self) -> list[float]:
        """The bound of each parameter; the one of the location is never used."""
        shape = [LOG_SLOPE_LIMIT] * (2 * self.bins + 1)
        return [1.0, LOG_SCALE_LIMIT, SHIFT_LIMIT, LOG_ZOOM_LIMIT, *shape]

    def _constants(self) -> SplineConstants:
        to_knots = self.anchored.new_zeros(self.n_params, max(16, self.bins + 1))
        to_knots[4 : 4 + self.bins, : self.bins + 1] = self.bin_width * self.anchored
        growth = 1.0 / self.anchored.new_tensor(self._limits())
        return SplineConstants(growth, to_knots, self.bins, self.bin_width)

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
            k = find_bin(a, grid[0])
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
        t = clamp_to_bin(place)
        outside = place - t
        q, denominator = _denominator(t, s, d0, d1)
        rise = s * torch.addcmul(s * (t * t), d0, q) / denominator
        # Outside the knots t is 0 or 1, and the tail has the slope of that knot.
        b = b0 + w * torch.addcmul(rise, outside, torch.lerp(d0, d1, t))
        if not slope:
            return restore(b), None
        return restore(b), restore(_log_slope(t, s, d0, d1))

    def core_inverse(self, b: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        b, (value, secant, raw_slope, *grid), restore = by_rows(
            b, [t for t in shape if t is not None]
        )
        k = find_bin(b, value)
        s = secant.gather(-1, k)
        d0, d1 = _slopes_at(raw_slope, k)
        w = grid[1].gather(-1, k) if grid else self.bin_width
        place = (b - value.gather(-1, k)) / (w * s)
        share = clamp_to_bin(place, exact=True)
        # m(a) = b is quadratic in t; in these terms its root is free of cancellation.
        rest = 1.0 - share
        low, high = 2.0 * s * share, 2.0 * s * rest
        tilt = d0 * rest - d1 * share
        root = tilt.abs() + torch.addcmul(low * high, tilt, tilt).sqrt()
        t = torch.where(tilt >= 0, low / (low + root), root / (root + high))
        outside = s * (place - share)
        position = t + outside.clamp(min=0.0) / d1 + outside.clamp(max=0.0) / d0
        if grid:
            a = grid[0].gather(-1, k) + w * position
        else:
            a = (position + k) * self.bin_width - self.bound
        if not slope:
            return restore(a), None
        return restore(a), restore(-_log_slope(t, s, d0, d1))

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, bins={self.bins}, bound={self.bound}, "
            f"learn_widths={self.learn_widths}"
        )


def _slopes_at(raw: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes at both ends of bin k (..., A), given raw slopes (..., bins + 1)."""
    if 2 * k.shape[-1] < raw.shape[-1]:  # few points per spline: skip the slopes nobody needs
        raw0, raw1 = raw.gather(-1, k), raw.gather(-1, k + 1)
        return exp_bounded(raw0, LOG_SLOPE_LIMIT), exp_bounded(raw1, LOG_SLOPE_LIMIT)
    slope = exp_bounded(raw, LOG_SLOPE_LIMIT)
    return slope.gather(-1, k), slope.gather(-1, k + 1)


def _denominator(t: Tensor, s: Tensor, d0: Tensor, d1: Tensor) -> tuple[Tensor, Tensor]:
    """q = t (1 - t) and s + (d0 + d1 - 2 s) q, which is at least s / 2."""
    q = torch.addcmul(t, t, t, value=-1.0)
    return q, torch.addcmul(s, torch.sub(d0 + d1, s, alpha=2.0), q)


def _log_slope(t: Tensor, s: Tensor, d0: Tensor, d1: Tensor) -> Tensor:
    """log m'(a) = log(s^2 (d1 t^2 + 2 s t (1 - t) + d0 (1 - t)^2) / (s + ...)^2)."""
    r, denominator = 1.0 - t, _denominator(t, s, d0, d1)[1]
    mean = d0 * (r * r) + 2.0 * s * (r * t) + d1 * (t * t)
    return mean.log() + 2.0 * (s / denominator).log()
