"""Box sides given as tables of their coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from aqf_core.normal import log_density

from .box_distribution import StackedSides

#: Base values of the table's columns; between them a Gaussian is exact and others are smooth.
KNOTS, LAST_KNOT = 97, 4.2


def base_knots(like: Tensor) -> Tensor:
    """The base values (K,) at which a table holds coordinates."""
    return torch.linspace(-LAST_KNOT, LAST_KNOT, KNOTS, dtype=like.dtype, device=like.device)


class TabulatedSides(StackedSides):
    """Sides whose coordinate is piecewise linear in the base variable z, with Gaussian tails.

    Args:
        table: Coordinates (..., N, 4, K) at :func:`base_knots`, increasing over K.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table.contiguous()
        self.knots = base_knots(table)
        super().__init__(table.shape[:-1], dtype=table.dtype, device=table.device)

    def from_base(self, z: Tensor) -> Tensor:
        columns = self._to_columns(z)
        start, low, slope = self._segment(torch.searchsorted(self.knots, columns))
        return self._from_columns(low + slope * (columns - start), z)

    def to_base(self, x: Tensor) -> Tensor:
        return self.base_and_log_prob(x)[0]

    def base_and_log_prob(self, x: Tensor) -> tuple[Tensor, Tensor]:
        columns = self._to_columns(x)
        start, low, slope = self._segment(torch.searchsorted(self.table, columns))
        z = start + (columns - low) / slope
        log_prob = log_density(z) - slope.log()
        return self._from_columns(z, x), self._from_columns(log_prob, x)

    def _segment(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First knot, its coordinate and the slope of the segment that ends at a knot (..., L)."""
        index = (index - 1).clamp(0, KNOTS - 2)
        low, high = self.table.gather(-1, index), self.table.gather(-1, index + 1)
        step = 2 * LAST_KNOT / (KNOTS - 1)
        return self.knots[index], low, ((high - low) / step).clamp_min(1e-9)

    def _to_columns(self, value: Tensor) -> Tensor:
        """Values (..., *batch_shape) as (*batch_shape, L)."""
        value = self._broadcast(value)
        return value.reshape(-1, *self.batch_shape).movedim(0, -1).contiguous()

    def _from_columns(self, columns: Tensor, like: Tensor) -> Tensor:
        return columns.movedim(-1, 0).reshape(self._broadcast(like).shape)

    def select(self, index: Tensor) -> TabulatedSides:
        """The boxes at positions (M,) in every pass."""
        return TabulatedSides(self.table[..., index, :, :])

    def single(self) -> TabulatedSides:
        """The only pass, batch shape (N, 4)."""
        return TabulatedSides(self.table[0])
