"""Recalibration with guaranteed coverage."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import LevelError
from ..normal import base_to_level, level_to_base
from .base import Recalibration

__all__ = ["ConformalRecalibration"]


class ConformalRecalibration(Recalibration):
    r"""Split-conformal calibration, with finite-sample guarantees.

    If the n calibration observations and a new one are exchangeable, whatever the base
    distribution, then for every level with \(1 \le \lceil (n+1) u \rceil \le n\)

        u <= P(y <= icdf(u)) <= u + 1 / (n + 1),

    and `interval(coverage)` holds y with at least the stated probability (and at most 2 / (n + 1)
    more). Levels that n observations cannot speak about continue the tail of the base distribution
    without a guarantee; an interval that would need them is an error. The result is a step
    function, so it has no density.

    Example:
        >>> recalibrate = ConformalRecalibration().fit(torch.linspace(0.3, 0.7, 99))
        >>> dist = recalibrate(torch.distributions.Uniform(0.0, 1.0))
        >>> dist.interval(0.9)
        (tensor(0.3163), tensor(0.6837))
    """

    has_density = False

    def _fit(self, z: Tensor) -> None:
        self._z = z

    def _columns(self) -> int:
        return len(self._z)

    def _to_base(self, z: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.searchsorted(self._z.to(z), z, right=True)
        w = level_to_base(count.to(z.dtype) / (self.observations + 1))
        return w, torch.full_like(z, math.nan)

    def _rank(self, w: Tensor) -> Tensor:
        # Less a rounding error, or a level such as 0.9 might ask for one observation too many.
        n = self.observations
        return (base_to_level(w.double()) - 1e-7) * (n + 1)

    def _from_base(self, w: Tensor) -> Tensor:
        n = self.observations
        rank = self._rank(w).ceil().long().clamp(1, n)
        z = self._z.to(w.device).gather(-1, rank - 1).to(w.dtype)
        last = level_to_base(torch.tensor(n / (n + 1.0), dtype=torch.float64)).item()
        # Beyond the observations the tails of the base distribution, shifted to fit.
        return z + (w - last).clamp_min(0) + (w + last).clamp_max(0)

    def bounds(self, coverage: Tensor) -> tuple[Tensor, Tensor]:
        """Ends, in z, of the central interval that is guaranteed to hold `coverage`."""
        n = self.observations
        rows, restore = self._rows(coverage)
        upper = ((1 + rows.double()) / 2 * (n + 1) - 1e-7 * n).ceil().long()
        if bool((upper > n).any()):
            highest = float(coverage.max())
            need = math.ceil(1.9999 / (1 - highest)) - 1 if highest < 1 else "infinitely many"
            raise LevelError(
                f"a guaranteed interval of coverage {highest:g} needs at least {need} calibration "
                f"observations, got {n}."
            )
        z = self._z.to(coverage)
        return restore(z.gather(-1, n - upper)), restore(z.gather(-1, upper - 1))
