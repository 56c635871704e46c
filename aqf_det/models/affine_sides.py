"""Box sides that were moved or mirrored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aqf_core.distributions import ScalarPredictive

from .box_distribution import BoxDistribution, StackedSides

#: A reflection exchanges left and right: the new x1 is the old x2.
MIRRORED_ORDER, MIRRORED_SIGN = (2, 1, 0, 3), (-1.0, 1.0, -1.0, 1.0)


class AffineSides(StackedSides):
    """The sides ``offset + sign * x[order]`` of boxes with sides x.

    Where the sign is negative the quantile at level u is one of the old side at level 1 - u.

    Args:
        base: The sides x, batch shape (..., N, 4).
        offset: (N, 4) or (4,).
        sign: (4,) of 1 and -1, the same for coordinates that the order exchanges.
        order: Permutation of the four coordinates, its own inverse.
    """

    def __init__(
        self,
        base: ScalarPredictive,
        offset: Tensor,
        sign: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
        order: Sequence[int] = (0, 1, 2, 3),
    ) -> None:
        self.base, self.offset, self.sign, self.order = base, offset, tuple(sign), list(order)
        super().__init__(base.batch_shape, dtype=base.dtype, device=base.device)

    def from_base(self, z: Tensor) -> Tensor:
        x = self.base.from_base(self._signed(z)[..., self.order])
        return self.offset + self._signed(x[..., self.order])

    def to_base(self, x: Tensor) -> Tensor:
        return self._signed(self.base.to_base(self._backward(x)))[..., self.order]

    def base_and_log_prob(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, log_prob = self.base.base_and_log_prob(self._backward(x))
        return self._signed(z)[..., self.order], log_prob[..., self.order]

    def _backward(self, x: Tensor) -> Tensor:
        return self._signed(x - self.offset)[..., self.order]

    def _signed(self, x: Tensor) -> Tensor:
        # Also makes a last dimension of length 1 that of four sides.
        return x * torch.tensor(self.sign, dtype=x.dtype, device=x.device)

    def select(self, index: Tensor) -> AffineSides:
        """The boxes at positions (M,) in every pass."""
        assert isinstance(self.base, StackedSides)
        offset = self.offset[index] if self.offset.dim() == 2 else self.offset
        return AffineSides(self.base.select(index), offset, self.sign, self.order)

    def single(self) -> AffineSides:
        """The only pass, batch shape (N, 4)."""
        assert isinstance(self.base, StackedSides)
        return AffineSides(self.base.single(), self.offset, self.sign, self.order)


def moved(distribution: BoxDistribution, offset: Tensor) -> BoxDistribution:
    """Boxes moved by (N, 4)."""
    return distribution.changed(
        distribution.boxes,
        lambda boxes: boxes + offset,
        lambda sides: AffineSides(sides, offset),
        distribution.weights,
    )


def mirrored(distribution: BoxDistribution, width: float) -> BoxDistribution:
    """Boxes of an image of this width as its mirror image has them: x1' = width - x2."""
    return distribution.changed(
        distribution.boxes,
        lambda boxes: mirrored_boxes(boxes, width),
        lambda sides: AffineSides(
            sides,
            distribution.like.new_tensor([width, 0.0, width, 0.0]),
            MIRRORED_SIGN,
            MIRRORED_ORDER,
        ),
        distribution.weights,
    )


def mirrored_boxes(boxes: Tensor, width: float) -> Tensor:
    """Boxes (..., 4) in the mirror image."""
    sign, offset = boxes.new_tensor(MIRRORED_SIGN), boxes.new_tensor([width, 0.0, width, 0.0])
    return offset + sign * boxes[..., list(MIRRORED_ORDER)]
