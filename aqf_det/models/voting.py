"""Voting: the candidates that suppression removed still say where the sides of an object are.

A kept box and the candidates of its class that overlap it vote on each of its sides. A candidate
counts the more, the better it overlaps and the surer it is of the side:

    w_i ~ exp(-(1 - IoU_i)^2 / width) / spread_i^2,     sum_i w_i = 1.

``variance`` voting takes standard deviations as spreads and moves the box to the weighted mean of
the candidates (He et al., CVPR 2019); its distribution moves along. ``quantile`` voting takes
interquartile ranges, which every distribution has, and averages the quantiles of the candidates
level by level, and the box with the same weights. Averages of increasing functions increase, so
quantiles never cross.
"""

from __future__ import annotations

import torch
from mmdet.structures.bbox import bbox_overlaps
from torch import Tensor

from .affine_sides import moved
from .box_distribution import BoxDistribution, StackedSides
from .tabulated_sides import TabulatedSides, base_knots

VOTING = ("variance", "quantile")
#: Candidates per box that vote; further ones overlap too little to matter.
MAX_VOTERS = 8


def voters(
    boxes: Tensor, labels: Tensor, kept: Tensor, pool: Tensor, width: float
) -> tuple[Tensor, Tensor]:
    """Who votes on each kept box.

    Args:
        boxes: (P, 4), and labels (P,), of all candidates.
        labels: See boxes.
        kept: (N,) positions of the kept ones.
        pool: (C,) positions of those that may vote, among them the kept ones.
        width: How quickly a vote fades with the overlap.

    Returns:
        Positions (N, M) of the voters, first the box itself, and their closeness (N, M) in [0, 1].
    """
    overlap = bbox_overlaps(boxes[kept], boxes[pool])
    closeness = torch.exp(-((1 - overlap) ** 2) / width)
    closeness[labels[kept][:, None] != labels[pool][None]] = 0.0
    closeness[kept[:, None] == pool[None]] = 2.0
    best = closeness.topk(min(MAX_VOTERS, len(pool)), 1)
    return pool[best.indices], best.values.clamp_max(1.0)


def vote(
    kind: str,
    boxes: Tensor,
    distribution: BoxDistribution,
    position: Tensor,
    closeness: Tensor,
) -> tuple[Tensor, BoxDistribution]:
    """The boxes (N, 4) and their distribution after the vote.

    Args:
        kind: ``"variance"`` or ``"quantile"``.
        boxes: (R, 4) of all voters.
        distribution: Of the R boxes.
        position: (N, M) rows of the voters of each box; the first is the box itself.
        closeness: (N, M).
    """
    if kind == "variance":
        aleatoric, epistemic = distribution.variance_parts()
        spread = (aleatoric + epistemic).sqrt()
    else:
        low, high = distribution.quantiles(boxes.new_tensor([0.25, 0.75])).unbind(1)
        spread = high - low
    # Relative to the box's own spread, so that squares neither overflow nor vanish.
    relative = (spread[position] / spread[position[:, :1]]).clamp_min(1e-6)
    weights = closeness[..., None] / relative.square()
    weights = weights / weights.sum(1, keepdim=True)
    result = (weights * boxes[position]).sum(1)
    own = position[:, 0]
    if kind == "variance":
        return result, moved(distribution.select(own), result - boxes[own])

    def mean(values: Tensor) -> Tensor:
        """Voters' values (..., R, 4) -> their weighted means (..., N, 4)."""
        return (weights * values[..., position, :]).sum(-2)

    def table(sides: StackedSides) -> TabulatedSides:
        knots = base_knots(boxes)
        return TabulatedSides(mean(sides.from_base(knots[:, None, None, None])).movedim(0, -1))

    return result, distribution.changed(len(position), mean, table)
