"""A sum of sigmoids with every parameter emitted by the conditioner."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .base import Direction, Transformer
from .positive import exp_bounded

__all__ = ["SigmoidMixture"]

# Heights and the linear part stay moderate, or their sum would lose its digits to cancellation.
LOG_HEIGHT_LIMIT = 4.0
LOG_STEEPNESS_LIMIT = 6.0


class Units(NamedTuple):
    """Parameters of the sigmoids, (..., units) each, and of the linear part, (...)."""

    height: Tensor
    steepness: Tensor
    centre: Tensor
    linear: Tensor


class SigmoidMixture(Transformer):
    """m(a) = c a + sum_i v_i tanh(w_i (a - mu_i)) with c, v_i, w_i > 0.

    The linear part keeps the map onto the real line and gives it linear tails. At zero parameters
    the centres are spread evenly over [-bound, bound] and the map is close to the identity.

    Args:
        direction: "quantile" or "cdf".
        units: number of sigmoids.
        bound: half the range over which the centres are spread at zero parameters.

    Example:
        >>> t = SigmoidMixture(units=8)
        >>> h = torch.zeros(1, t.n_params)
        >>> t.quantile(torch.tensor([0.1, 0.9]), h)  # N(0, 1) has -1.2816 and 1.2816
        tensor([-1.2788,  1.2788])
    """

    centres: Tensor

    def __init__(
        self, direction: Direction = "quantile", units: int = 8, bound: float = 2.5
    ) -> None:
        if units < 1 or bound <= 0:
            raise ValueError(f"units and bound must be positive, got {units} and {bound}.")
        super().__init__((units, units, units, 1), direction)
        self.units, self.bound = units, bound
        spacing = 2.0 * bound / units
        # Half of the slope comes from the linear part, half from sigmoids of height 2 v each.
        self.base_height = 0.25 * spacing
        self.base_steepness = 1.0 / spacing
        self.register_buffer("centres", _spread(units, bound), persistent=False)

    def prepare(self, *raw: Tensor) -> Units:
        height, steepness, centre, linear = raw
        return Units(
            self.base_height * exp_bounded(height, LOG_HEIGHT_LIMIT),
            self.base_steepness * exp_bounded(steepness, LOG_STEEPNESS_LIMIT),
            self.centres.to(centre.dtype) + centre,
            0.5 * exp_bounded(linear.squeeze(-1), LOG_HEIGHT_LIMIT),
        )

    def core(self, a: Tensor, shape: Units, slope: bool) -> tuple[Tensor, Tensor | None]:
        wave = torch.tanh(shape.steepness * (a.unsqueeze(-1) - shape.centre))
        value = shape.linear * a + (shape.height * wave).sum(-1)
        if not slope:
            return value, None
        steep = (shape.height * shape.steepness * (1.0 - wave * wave)).sum(-1)
        return value, (shape.linear + steep).log()

    def bracket(self, b: Tensor, shape: Units) -> tuple[Tensor, Tensor]:
        reach = (b.abs() + shape.height.sum(-1)) / shape.linear
        return -reach, reach

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, units={self.units}, bound={self.bound}"


def _spread(units: int, bound: float) -> Tensor:
    """`units` points in the middle of equal cells of [-bound, bound]."""
    return bound * ((2.0 * torch.arange(units) + 1.0) / units - 1.0)
