"""Which cell answers for which object: the level by its size, the cell by its centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from mmdet.registry import TASK_UTILS
from torch import Tensor

from .coder import Grid


@dataclass(frozen=True)
class Assignment:
    """Positive candidates of a batch.

    Attributes:
        image: (P,) index of the image in the batch.
        index: (P,) index into the grid's candidates.
        boxes: (P, 4) the objects, xyxy in network-input pixels.
        labels: (P,) their classes.
        weights: (P,) their mix-up weights (1 where no mix-up took place).
    """

    image: Tensor
    index: Tensor
    boxes: Tensor
    labels: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.index)


@TASK_UTILS.register_module()
class ScaleCentreAssigner:
    """Gives each object to one slot of the cell that holds its centre, on the level of its size.

    An object with sqrt(area) <= ``limits[l]`` belongs to the first such level l, larger ones to the
    last. Objects that meet in one cell take its slots in order; those beyond the last slot are left
    out, and so are objects without area.

    Args:
        limits: Ascending sizes in network-input pixels, one fewer than there are levels.
    """

    def __init__(self, limits: Sequence[float] = (30.0, 90.0)) -> None:
        if list(limits) != sorted(limits) or any(limit <= 0 for limit in limits):
            raise ValueError(f"limits must be positive and ascending, got {tuple(limits)}.")
        self.limits = tuple(float(limit) for limit in limits)

    def assign(
        self,
        grid: Grid,
        boxes: Sequence[Tensor],
        labels: Sequence[Tensor],
        weights: Sequence[Tensor],
    ) -> Assignment:
        """Assign the objects of a batch (one tensor per image in each list)."""
        if len(self.limits) + 1 != len(grid.shapes):
            raise ValueError(
                f"{len(self.limits)} size limits need {len(self.limits) + 1} levels, got "
                f"{len(grid.shapes)}."
            )
        picked = [self._assign_image(grid, b) for b in boxes]
        return Assignment(
            image=torch.cat([torch.full_like(index, i) for i, (_, index) in enumerate(picked)]),
            index=torch.cat([index for _, index in picked]),
            boxes=torch.cat([b[keep] for b, (keep, _) in zip(boxes, picked, strict=True)]),
            labels=torch.cat([v[keep] for v, (keep, _) in zip(labels, picked, strict=True)]),
            weights=torch.cat([v[keep] for v, (keep, _) in zip(weights, picked, strict=True)]),
        )

    def _assign_image(self, grid: Grid, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Objects kept (P,) and the candidate each of them takes (P,)."""
        size = boxes[:, 2:] - boxes[:, :2]
        device = boxes.device
        keep = ((size > 0).all(-1) & boxes.isfinite().all(-1)).nonzero().flatten()
        boxes, size = boxes[keep], size[keep]
        level = torch.bucketize(size.prod(-1).sqrt(), torch.tensor(self.limits, device=device))
        shapes = torch.tensor(grid.shapes, device=device)[level]
        starts = torch.tensor(grid.offsets(), device=device)[:-1]
        stride = grid.stride[starts][level]
        cell = ((boxes[:, :2] + boxes[:, 2:]) / 2 / stride[:, None]).floor().long()
        x = torch.minimum(cell[:, 0].clamp_min(0), shapes[:, 1] - 1)
        y = torch.minimum(cell[:, 1].clamp_min(0), shapes[:, 0] - 1)
        first_slot = starts[level] + (y * shapes[:, 1] + x) * grid.slots
        # Rank of each object among those of its cell, in the order of the annotation.
        same = first_slot[:, None] == first_slot[None, :]
        rank = same.tril(-1).sum(1)
        fits = rank < grid.slots
        return keep[fits], (first_slot + rank)[fits]
