"""Box distributions seen through recalibration maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from aqf_core.distributions import ScalarPredictive
from aqf_core.mixtures import MixturePredictive
from aqf_core.normal import base_to_level
from aqf_core.recalibration import RecalibratedPredictive, Recalibration

from ..models.box_distribution import BoxDistribution, moments
from ..models.tabulated_sides import TabulatedSides, base_knots


class RecalibratedBoxes(BoxDistribution):
    """The distribution of N boxes whose sides are recalibrated one by one.

    The marginal distribution of each side is repaired; how the sides of a box depend on each other
    (their copula) stays as it is.

    Args:
        base: The distribution to repair.
        maps: One recalibration, of four columns, for each group of boxes.
        group: (N,) group of each box.
    """

    def __init__(self, base: BoxDistribution, maps: Sequence[Recalibration], group: Tensor) -> None:
        self.passes, self.boxes, self.base = base.passes, base.boxes, base
        self.like = base.like
        self._parts: list[tuple[Tensor, RecalibratedPredictive]] = []
        for g in group.unique().tolist():
            rows = (group == g).nonzero().flatten()
            part = base if len(rows) == base.boxes else base.select(rows)
            self._parts.append((rows, maps[g](_invertible(part.marginal()))))

    def select(self, index: Tensor) -> BoxDistribution:
        """Not needed: recalibration is the last step."""
        raise NotImplementedError

    def marginal(self) -> ScalarPredictive:
        """Not one object: boxes of different groups have different maps."""
        raise NotImplementedError

    def quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles (N, K, 4) at levels (K,)."""
        levels = levels.to(self.like)
        return self._rows(lambda rows, side: side.quantiles(levels).movedim(-1, 1), len(levels))

    def at_base(self, z: Tensor) -> Tensor:
        """Coordinates (N, K, 4) at base values (N, K, 4) of the distribution before repair."""
        z = z.to(self.like)
        return self._rows(
            lambda rows, side: side.base.from_base(z[rows].movedim(1, 0)).movedim(0, 1), z.shape[1]
        )

    def variance_parts(self) -> tuple[Tensor, Tensor]:
        """Aleatoric and epistemic variance (N, 4); their ratio is that before repair."""
        aleatoric, epistemic = self.base.variance_parts()
        new = self._rows(lambda rows, side: moments(side)[1][:, None], 1)[:, 0]
        factor = new / (aleatoric + epistemic).clamp_min(torch.finfo(new.dtype).tiny)
        return factor * aleatoric, factor * epistemic

    def samples(self, count: int) -> Tensor:
        """Joint samples (N, S, 4).

        Each coordinate moves to the repaired quantile of its level. Where opposite sides of a
        sample, in order before, would cross, both stay where they were.
        """
        old = self.base.samples(count)

        def move(rows: Tensor, side: RecalibratedPredictive) -> Tensor:
            z = side.base.to_base(old[rows].movedim(1, 0))
            return side.from_base(z).movedim(0, 1)

        new = self._rows(move, count)
        crossed = (new[..., :2] >= new[..., 2:]) & (old[..., :2] < old[..., 2:])
        return torch.where(crossed.repeat(1, 1, 2), old, new)

    def _rows(
        self, compute: Callable[[Tensor, RecalibratedPredictive], Tensor], count: int
    ) -> Tensor:
        """Collect the results (rows, K, 4) of all groups."""
        result = self.like.new_zeros(self.boxes, count, 4)
        for rows, side in self._parts:
            result[rows] = compute(rows, side)
        return result


def _invertible(sides: ScalarPredictive) -> ScalarPredictive:
    """Side distributions (N, 4) that are as quick to invert; mixtures become tables.

    Recalibrated levels differ from side to side, and a root search for each of them would take
    twenty times as long as all quantiles of the mixture at common levels.
    """
    if not isinstance(sides, MixturePredictive):
        return sides
    knots = base_knots(torch.empty(0, dtype=sides.dtype, device=sides.device))
    return TabulatedSides(sides.quantiles(base_to_level(knots)))
