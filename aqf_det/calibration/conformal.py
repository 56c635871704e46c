r"""Conformal statements about box sides: they hold for any number of held-out boxes.

The base value of a side is \(z = \Phi^{-1}(F(x))\), where F is the predicted distribution and x the
true coordinate. If the held-out boxes and a new one are exchangeable, the rank of the new base
value among theirs is uniform, whatever F is, so order statistics of the held-out base values bound
the new one with a known probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aqf_core.distributions import GaussianPredictive
from aqf_core.errors import LevelError
from aqf_core.recalibration import ConformalRecalibration

from ..models.coder import OUTWARD

#: Observations that already are base values are those of a standard normal prediction.
STANDARD = GaussianPredictive(torch.zeros(()), torch.ones(()))


@dataclass(frozen=True)
class ConformalSides:
    """Bounds of the base values of boxes, from those of held-out boxes.

    Attributes:
        values: For each group of boxes (one, or one per size) the base values (n, 4) of its
            held-out boxes. Every statement holds within each group.

    Example:
        >>> z = torch.randn(999, 4, generator=torch.Generator().manual_seed(0))
        >>> sides = ConformalSides((z,))
        >>> one_box = torch.zeros(1, dtype=torch.long)
        >>> sides.interval(0.9, one_box).shape, sides.band(0.9, one_box).shape
        (torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    """

    values: Sequence[Tensor]

    def interval(self, coverage: float, group: Tensor) -> Tensor:
        """Ends (N, 2, 4) of intervals, each of which holds its side with at least `coverage`.

        Args:
            coverage: In (0, 1).
            group: (N,) group of each box.
        """
        return self._rows([self._interval, coverage], group)

    def band(
        self, coverage: float, group: Tensor, *, outer: bool = True, inner: bool = True
    ) -> Tensor:
        """Ends (N, 2, 4) of intervals that hold all four sides together with at least `coverage`.

        The box of the outward ends then holds the object and the box of the inward ends lies inside
        it. Whoever needs only one of the two gets a tighter one.

        Args:
            coverage: In (0, 1).
            group: (N,) group of each box.
            outer: Whether outward errors are bounded; infinite ends where not.
            inner: Whether inward errors are bounded.
        """
        return self._rows([_band, coverage, outer, inner], group)

    def _rows(self, call: list, group: Tensor) -> Tensor:
        """The bounds (2, 4) of each group that occurs, row by row."""
        bounds, *options = call
        result = torch.zeros(len(group), 2, 4, device=group.device)
        for g in group.unique().tolist():
            found = bounds(self.values[g], *options)
            result[group == g] = found.to(result)
        return result

    @staticmethod
    def _interval(z: Tensor, coverage: float) -> Tensor:
        fitted = ConformalRecalibration(per_column=True).fit(STANDARD, z)
        return torch.stack(fitted.bounds(torch.full((4,), coverage, dtype=torch.float64)))


def _band(z: Tensor, coverage: float, outer: bool, inner: bool) -> Tensor:
    r"""Bounds (2, 4) of all sides at once, from base values (n, 4).

    Errors in every bounded direction (outward, inward) of every side are replaced by their ranks
    1 ... n, which makes directions comparable, and a box by its largest rank s. Let k be the
    ceil((n + 1) coverage)-th smallest s. Each direction may go as far as its (k + 1)-th smallest
    error: counting the new box, ranks grow by at most one, and the largest rank of the new box is
    exchangeable with those of the others.
    """
    n = len(z)
    outward = z * torch.tensor(OUTWARD, dtype=z.dtype, device=z.device)
    errors = torch.cat([outward] * outer + [-outward] * inner, -1)
    ordered = errors.sort(0).values
    ranks = torch.searchsorted(ordered.T.contiguous(), errors.T.contiguous(), right=True)
    worst = ranks.amax(0).sort().values
    place = math.ceil((n + 1) * coverage - 1e-7 * n)
    rank = int(worst[place - 1]) + 1 if place <= n else n + 1
    if rank > n:
        raise LevelError(
            f"{n} held-out boxes cannot guarantee whole boxes at coverage {coverage:g}; ask for "
            "less, or calibrate with more images."
        )
    limit = ordered[rank - 1]
    reach = torch.full((2, 4), math.inf, dtype=z.dtype, device=z.device)  # outward, inward
    if outer:
        reach[0] = limit[:4]
    if inner:
        reach[1] = limit[-4:]
    low_is_out = torch.tensor(OUTWARD, device=z.device) < 0
    return torch.stack(
        [-torch.where(low_is_out, reach[0], reach[1]), torch.where(low_is_out, reach[1], reach[0])]
    )
