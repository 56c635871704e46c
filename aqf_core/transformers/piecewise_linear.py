"""Spline quantile functions: piecewise linear in the level, with exponential tails."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..losses.quantile import piecewise_linear_crps
from ..normal import log_base_to_level, log_density, log_level_to_base
from .base import Direction, Transformer
from .knots import anchored_sum, by_rows, clamp_to_bin, find_bin
from .positive import exp_bounded

__all__ = ["PiecewiseLinear"]

LOG_SLOPE_LIMIT = 6.0
# Bins may become very narrow, for a jump, but not much wider: the outermost level stays above
# 1e-12, so that float32 tells all levels apart.
LOG_WIDTH_LIMITS = (4.0, 1.0)


class Knots(NamedTuple):
    """One quantile function per leading index, in terms of knots and bins."""

    position: Tensor  # z = Phi^-1(level) of each knot, (..., bins + 1)
    value: Tensor  # quantile at each knot, (..., bins + 1)
    height: Tensor  # rise of the quantile in each bin, (..., bins)
    log_tail: Tensor  # log probability beyond each knot, seen from the median, (..., bins + 1)
    mass: Tensor  # probability of each bin, (..., bins)
    tails: Tensor  # scales of the left and right exponential tails, (..., 2)


class PiecewiseLinear(Transformer):
    """Q(u) linear between knots (u_k, q_k), with tails of an exponential distribution beyond them.

        u < u_0:   Q(u) = q_0 + beta_left log(u / u_0)
        u > u_K:   Q(u) = q_K - beta_right log((1 - u) / (1 - u_K))

    The density is piecewise constant, both directions and the CRPS are closed, and the inverse is
    piecewise linear as well: `direction` chooses nothing but the name. At zero parameters the knots
    lie on the quantile function of N(0, 1), and the tails have its mean excess.

    Args:
        direction: "quantile" or "cdf".
        bins: number of linear pieces, even.
        bound: at zero parameters the levels of the knots are Phi of even steps in [-bound, bound].
        learn_levels: whether the levels of the knots are learned, too.

    Example:
        >>> t = PiecewiseLinear()
        >>> h = torch.zeros(1, t.n_params)
        >>> q = t.quantile(torch.tensor([1e-6, 0.5]), h)
        >>> t.cdf(q, h)
        tensor([1.0000e-06, 5.0000e-01])
        >>> t.crps(torch.zeros(1), h)  # N(0, 1) has 0.2337
        tensor([0.2356])
    """

    closed_inverse = True
    closed_crps = True
    anchored: Tensor

    def __init__(
        self,
        direction: Direction = "quantile",
        bins: int = 16,
        bound: float = 2.5,
        learn_levels: bool = True,
    ) -> None:
        if bins < 2 or bins % 2 or bound <= 0:
            raise ValueError(f"bins must be even and bound positive, got {bins} and {bound}.")
        super().__init__((bins, 2, bins) if learn_levels else (bins, 2), direction)
        self.bins, self.bound = bins, bound
        self.bin_width = 2.0 * bound / bins
        density = math.exp(-0.5 * bound * bound) / math.sqrt(2.0 * math.pi)
        self.mean_excess = density / (0.5 * math.erfc(bound / math.sqrt(2.0))) - bound
        self.register_buffer("anchored", anchored_sum(bins), persistent=False)

    @property
    def core_is_quantile(self) -> bool:
        return True

    def prepare(self, *raw: Tensor) -> Knots:
        raw_slope, raw_tails, *raw_width = raw
        anchored = self.anchored.to(raw_slope.dtype)
        height = self.bin_width * exp_bounded(raw_slope, LOG_SLOPE_LIMIT)
        width = torch.full_like(height, self.bin_width)
        if raw_width:
            narrow, wide = LOG_WIDTH_LIMITS
            x = raw_width[0]
            factor = (x / (1.0 + x.clamp(min=0.0) / wide - x.clamp(max=0.0) / narrow)).exp()
            width, height = width * factor, height * factor
        position = width @ anchored
        log_tail = torch.special.log_ndtr(-position.abs())
        mass = log_tail.exp().diff(dim=-1).abs()
        tails = self.mean_excess * exp_bounded(raw_tails, LOG_SLOPE_LIMIT)
        return Knots(position, height @ anchored, height, log_tail, mass, tails)

    def core(self, a: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        a, tables, restore = by_rows(a, shape)
        knots = Knots(*tables)
        piece = self._piece(knots, find_bin(a, knots.position))
        # Probabilities count from the nearer end, so that both tails are equally accurate.
        log_p = log_base_to_level(-piece.side * a)
        place = piece.side * (piece.log_tail.exp() - log_p.exp()) / piece.mass
        share = clamp_to_bin(place, exact=True)
        beyond = (piece.log_end - log_p).clamp(min=0.0)
        b = piece.value + piece.height * share + piece.side * piece.tail_scale * beyond
        return restore(b), restore(_log_slope(a, piece, beyond, log_p)) if slope else None

    def core_inverse(self, b: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        b, tables, restore = by_rows(b, shape)
        knots = Knots(*tables)
        piece = self._piece(knots, find_bin(b, knots.value))
        rise = (b - piece.value) / piece.height
        share = clamp_to_bin(rise, exact=True)
        p = piece.log_tail.exp() - piece.side * share * piece.mass
        beyond = (piece.side * (rise - share)).clamp(min=0.0) * piece.height / piece.tail_scale
        log_p = p.clamp(max=0.5).log() - beyond
        a = -piece.side * log_level_to_base(log_p)
        return restore(a), restore(-_log_slope(a, piece, beyond, log_p)) if slope else None

    def core_crps(self, b: Tensor, shape: Knots) -> Tensor:
        tail = shape.log_tail.exp()
        levels = torch.where(shape.position > 0, 1.0 - tail, tail)
        left, right = shape.tails.unbind(-1)
        return piecewise_linear_crps(levels, shape.value, b, left, right, reduction="none")

    def _piece(self, knots: Knots, k: Tensor) -> Piece:
        """The bin k (..., A) of each point, seen from the median."""
        right = k >= self.bins // 2
        ends = knots.log_tail[..., -1:], knots.log_tail[..., :1]
        return Piece(
            side=2.0 * right.to(knots.value.dtype) - 1.0,
            value=knots.value.gather(-1, k),
            height=knots.height.gather(-1, k),
            log_tail=knots.log_tail.gather(-1, k),
            mass=knots.mass.gather(-1, k),
            log_end=torch.where(right, *ends),
            tail_scale=torch.where(right, knots.tails[..., 1:], knots.tails[..., :1]),
        )

    def extra_repr(self) -> str:
        levels = len(self.sizes) > 4
        return (
            f"{super().extra_repr()}, bins={self.bins}, bound={self.bound}, learn_levels={levels}"
        )


class Piece(NamedTuple):
    """The linear piece that each point (..., A) belongs to, and the tail on its side."""

    side: Tensor  # -1 left, +1 right of the median
    value: Tensor  # quantile at the left knot
    height: Tensor
    log_tail: Tensor  # at the left knot
    mass: Tensor
    log_end: Tensor  # log probability of the tail
    tail_scale: Tensor


def _log_slope(a: Tensor, piece: Piece, beyond: Tensor, log_p: Tensor) -> Tensor:
    """log dQ(Phi(a)) / da = log dQ/du + log N(a)."""
    inside = piece.height.log() - piece.mass.log()
    return torch.where(beyond > 0, piece.tail_scale.log() - log_p, inside) + log_density(a)
