"""Per-side boxes: every coordinate is monotone in its own output.

The box of a cell with centre (c_x, c_y) and stride s is

    x1 = c_x - s exp(t1)    y1 = c_y - s exp(t2)    x2 = c_x + s exp(t3)    y2 = c_y + s exp(t4),

so it always has positive width and height, and no coordinate depends on another's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Sign of a distance in each coordinate of an xyxy box.
OUTWARD = (-1.0, -1.0, 1.0, 1.0)
#: Distances beyond exp(8) cells can only come from a diverging network; the bound keeps exp finite.
LOG_DISTANCE_RANGE = (-8.0, 8.0)


@dataclass(frozen=True)
class Grid:
    """The cells of all levels in one list, ordered (level, y, x, slot).

    Attributes:
        centre: (N, 2) cell centres in network-input pixels.
        stride: (N,) side of the cell in pixels.
        level: (N,) index of the level.
        slot: (N,) index of the slot within the cell.
        shapes: (height, width) of every level.
        slots: Slots per cell.
    """

    centre: Tensor
    stride: Tensor
    level: Tensor
    slot: Tensor
    shapes: tuple[tuple[int, int], ...]
    slots: int

    def __len__(self) -> int:
        return len(self.stride)

    def offsets(self) -> list[int]:
        """Index of the first candidate of every level, and the total at the end."""
        offsets = [0]
        for height, width in self.shapes:
            offsets.append(offsets[-1] + height * width * self.slots)
        return offsets

    def locate(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Flat candidate index (P,) -> (level, y, x, slot)."""
        level = self.level[index]
        start = torch.tensor(self.offsets(), device=index.device)[level]
        width = torch.tensor([w for _, w in self.shapes], device=index.device)[level]
        cell = (index - start) // self.slots
        return level, cell // width, cell % width, self.slot[index]


def make_grid(
    shapes: Sequence[tuple[int, int]],
    strides: Sequence[int],
    slots: int,
    device: torch.device | str = "cpu",
) -> Grid:
    """The grid of maps with the given (height, width) and strides."""
    centres, sides, levels = [], [], []
    for level, ((height, width), stride) in enumerate(zip(shapes, strides, strict=True)):
        y, x = torch.meshgrid(
            torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij"
        )
        centre = (torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride
        centres.append(centre.repeat_interleave(slots, 0))
        count = height * width * slots
        sides.append(torch.full((count,), float(stride), device=device))
        levels.append(torch.full((count,), level, dtype=torch.long, device=device))
    stride_all = torch.cat(sides)
    return Grid(
        centre=torch.cat(centres),
        stride=stride_all,
        level=torch.cat(levels),
        slot=torch.arange(len(stride_all), device=device) % slots,
        shapes=tuple((int(h), int(w)) for h, w in shapes),
        slots=slots,
    )


def decode_sides(t: Tensor, centre: Tensor, stride: Tensor) -> Tensor:
    """Log-distances t (..., N, 4) at cells (N, 2), (N,) -> xyxy boxes (..., N, 4) in pixels."""
    distance = t.clamp(*LOG_DISTANCE_RANGE).exp() * stride[..., None]
    sign = t.new_tensor(OUTWARD)
    return centre.repeat(*[1] * (centre.dim() - 1), 2) + sign * distance


def encode_sides(boxes: Tensor, centre: Tensor, stride: Tensor) -> Tensor:
    """Inverse of :func:`decode_sides`; a side beyond the centre gives the smallest t."""
    sign = boxes.new_tensor(OUTWARD)
    distance = (boxes - centre.repeat(*[1] * (centre.dim() - 1), 2)) * sign / stride[..., None]
    return distance.clamp_min(1e-12).log().clamp(*LOG_DISTANCE_RANGE)
