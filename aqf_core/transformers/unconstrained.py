"""The integral of a positive network: an unconstrained monotonic neural network."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Direction, Transformer
from .knots import anchored_sum, by_rows, clamp_to_bin, find_bin
from .positive import exp_bounded

__all__ = ["Unconstrained"]

LOG_SLOPE_LIMIT = 6.0


class Knots(NamedTuple):
    """Slope and value of the map at the grid points, (..., bins + 1) each."""

    slope: Tensor
    value: Tensor


class Unconstrained(Transformer):
    """m(a) = integral from 0 to a of exp(h . phi(t)) dt with a neural network phi.

    The integrand is positive for any h and phi. The network is evaluated on a fixed grid only, and
    the integrand interpolated linearly between the grid points, so that the integral is exact, the
    map is strictly increasing and both directions are closed. Outside the grid the integrand is
    constant. Because phi depends on the grid alone, it runs once per call, not once per example.
    Zero parameters give the identity.

    Args:
        direction: "quantile" or "cdf".
        features: number of outputs of phi, and of parameters per variable (beside two).
        bins: number of intervals of the grid, even.
        bound: the grid spans [-bound, bound].
        hidden: hidden units of phi.

    Example:
        >>> t = Unconstrained()
        >>> t.quantile(torch.tensor([0.025, 0.5]), torch.zeros(1, t.n_params)).detach()
        tensor([-1.9600,  0.0000])
    """

    closed_inverse = True
    sliding = True
    grid: Tensor
    integral: Tensor

    def __init__(
        self,
        direction: Direction = "quantile",
        features: int = 16,
        bins: int = 48,
        bound: float = 3.0,
        hidden: int = 64,
    ) -> None:
        if bins < 2 or bins % 2 or bound <= 0:
            raise ValueError(f"bins must be even and bound positive, got {bins} and {bound}.")
        super().__init__((features,), direction)
        self.bins, self.bound = bins, bound
        self.bin_width = 2.0 * bound / bins
        self.first = nn.Linear(1, hidden)
        self.second = nn.Linear(hidden, features)
        # Bumps of the width of a few bins, spread over the grid, in random combinations.
        with torch.no_grad():
            steepness = 2.0 + 6.0 * torch.rand(hidden, 1)
            centre = bound * ((2.0 * torch.arange(hidden) + 1.0) / hidden - 1.0)
            self.first.weight.copy_(steepness)
            self.first.bias.copy_(-centre * steepness[:, 0])
            self.second.weight.normal_(std=hidden**-0.5)
            self.second.bias.zero_()
        grid = torch.linspace(-bound, bound, bins + 1, dtype=torch.float64)
        self.register_buffer("grid", grid.float(), persistent=False)
        # slopes @ integral = values: the trapezoidal rule, anchored at 0 in the middle.
        cells = torch.zeros(bins + 1, bins)
        cells[torch.arange(bins), torch.arange(bins)] = 0.5
        cells[torch.arange(bins) + 1, torch.arange(bins)] = 0.5
        self.register_buffer("integral", cells @ anchored_sum(bins), persistent=False)

    def prepare(self, *raw: Tensor) -> Knots:
        h = raw[0]
        phi = self.second(torch.tanh(self.first(self.grid.unsqueeze(-1))))
        slope = exp_bounded(h @ phi.T.to(h.dtype), LOG_SLOPE_LIMIT)
        return Knots(slope, slope @ (self.bin_width * self.integral.to(h.dtype)))

    def core(self, a: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        a, (slopes, values), restore = by_rows(a, shape)
        place = a * (1.0 / self.bin_width) + 0.5 * self.bins
        first = place.detach().clamp(0.0, self.bins - 0.5).floor()
        k, place = first.long(), place - first
        d0, d1 = slopes.gather(-1, k), slopes.gather(-1, k + 1)
        t = clamp_to_bin(place)
        outside = place - t
        inside = t * (d0 * (1.0 - 0.5 * t) + d1 * (0.5 * t))
        tail = outside.clamp(min=0.0) * d1 + outside.clamp(max=0.0) * d0
        b = values.gather(-1, k) + self.bin_width * (inside + tail)
        if not slope:
            return restore(b), None
        return restore(b), restore((d0 * (1.0 - t) + d1 * t).log())

    def core_inverse(self, b: Tensor, shape: Knots, slope: bool) -> tuple[Tensor, Tensor | None]:
        b, (slopes, values), restore = by_rows(b, shape)
        k = find_bin(b, values)
        d0, d1 = slopes.gather(-1, k), slopes.gather(-1, k + 1)
        rise = (b - values.gather(-1, k)) * (1.0 / self.bin_width)
        # d0 t + (d1 - d0) t^2 / 2 = rise; the squared slope is linear in the share of the rise.
        mean = 0.5 * (d0 + d1)
        place = rise / mean
        share = clamp_to_bin(place, exact=True)
        steep = (d0 * d0 * (1.0 - share) + d1 * d1 * share).sqrt()
        outside = mean * (place - share)
        t = 2.0 * mean * share / (d0 + steep)
        t = t + outside.clamp(min=0.0) / d1 + outside.clamp(max=0.0) / d0
        a = (t + k) * self.bin_width - self.bound
        if not slope:
            return restore(a), None
        return restore(a), restore(-steep.log())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bins={self.bins}, bound={self.bound}"
