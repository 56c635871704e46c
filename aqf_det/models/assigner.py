"""Which cell answers for which object: the level by its size, the cell by its centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from mmdet.registry import TASK_UTILS
from mmdet.structures import SampleList
from torch import Tensor

from ..datasets.transforms import picture_frame
from .coder import Grid


def picture_frames(samples: SampleList, like: Tensor) -> Tensor:
    """The rectangles (B, 4) that the pictures of a batch fill in the network's input."""
    return like.new_tensor([picture_frame(sample.metainfo) for sample in samples]).reshape(-1, 4)


@dataclass(frozen=True)
class Assignment:
    """Positive candidates of a batch.

    Attributes:
        image: (P,) index of the image in the batch.
        index: (P,) index into the grid's candidates.
        boxes: (P, 4) the objects, xyxy in network-input pixels.
        labels: (P,) their classes.
        weights: (P,) their mix-up weights (1 where no mix-up took place).
        frame: (P, 4) the rectangles of their pictures in the same pixels; the assigner does not
            know them, see :meth:`framed`.
    """

    image: Tensor
    index: Tensor
    boxes: Tensor
    labels: Tensor
    weights: Tensor
    frame: Tensor | None = None

    def framed(self, samples: SampleList) -> Assignment:
        """The same with the rectangle that the picture of each object fills."""
        return replace(self, frame=picture_frames(samples, self.boxes)[self.image])

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
        radius: Cells up to this many rows and columns away whose centre lies inside the object
            learn it, too, where a slot is left: with few images this trains much faster.
    """

    def __init__(self, limits: Sequence[float] = (30.0, 90.0), radius: int = 0) -> None:
        if radius < 0:
            raise ValueError(f"radius must not be negative, got {radius}.")
        self.radius = int(radius)
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
        last = shapes.flip(-1) - 1  # of the columns and of the rows
        cell = torch.minimum(cell.clamp_min(0), last)
        around, owner = self._neighbours(cell, last, stride, boxes)
        cell, keep = torch.cat([cell, around]), torch.cat([keep, keep[owner]])
        level = torch.cat([level, level[owner]])
        columns = torch.cat([shapes, shapes[owner]])[:, 1]
        first_slot = starts[level] + (cell[:, 1] * columns + cell[:, 0]) * grid.slots
        # Rank of each object among those of its cell: centres first, as annotated.
        same = first_slot[:, None] == first_slot[None, :]
        rank = same.tril(-1).sum(1)
        fits = rank < grid.slots
        return keep[fits], (first_slot + rank)[fits]

    def _neighbours(
        self, cell: Tensor, last: Tensor, stride: Tensor, boxes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Further cells (M, 2) of objects and the index (M,) of the object of each."""
        reach = torch.arange(-self.radius, self.radius + 1, device=cell.device)
        steps = torch.cartesian_prod(reach, reach).reshape(-1, 2)
        steps = steps[(steps != 0).any(-1)]
        around = cell[:, None] + steps
        centre = (around + 0.5) * stride[:, None, None]
        inside = (centre > boxes[:, None, :2]) & (centre < boxes[:, None, 2:])
        valid = (inside & (around >= 0) & (around <= last[:, None])).all(-1)
        return around[valid], valid.nonzero()[:, 0]
