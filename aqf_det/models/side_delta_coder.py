"""Box deltas of which each moves one side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmdet.models.task_modules.coders import BaseBBoxCoder
from mmdet.registry import TASK_UTILS
from mmdet.structures.bbox import get_box_tensor
from torch import Tensor

from .coder import OUTWARD

#: A decoded side keeps this share of the reference box's extent away from its centre.
MARGIN = 1e-3


@TASK_UTILS.register_module()
class SideDeltaBBoxCoder(BaseBBoxCoder):
    """xyxy deltas: with a reference box (a proposal) of width w and height h

        x1 = X1 + w s1 d1    y1 = Y1 + h s2 d2    x2 = X2 + w s3 d3    y2 = Y2 + h s4 d4.

    Every side increases in its own delta and depends on no other, so the quantiles of a delta are
    those of its side. (Centre and size deltas mix two variables in each side; marginal quantiles do
    not survive them.) No side crosses the centre of the reference box: decoded boxes are valid.

    Example:
        >>> coder = SideDeltaBBoxCoder(stds=(0.1, 0.1, 0.1, 0.1))
        >>> box = torch.tensor([[10.0, 10.0, 50.0, 90.0]])
        >>> coder.decode(box, torch.tensor([[1.0, 0.0, -1.0, 2.0]]))
        tensor([[ 14.,  10.,  46., 106.]])

    Args:
        stds: s1 ... s4, the deviations of deltas in box sizes.
        clip_border: Whether decoded boxes end at the border of the image.
        use_box_type: Unused; mmdet passes it.
    """

    def __init__(
        self,
        stds: Sequence[float] = (0.1, 0.1, 0.1, 0.1),
        clip_border: bool = True,
        use_box_type: bool = False,
    ) -> None:
        super().__init__(use_box_type=use_box_type)
        if len(stds) != 4 or min(stds) <= 0:
            raise ValueError(f"stds must be four positive numbers, got {tuple(stds)}.")
        self.stds, self.clip_border = tuple(float(s) for s in stds), clip_border

    def scale(self, bboxes: Tensor) -> Tensor:
        """Pixels per unit of each delta, (..., 4) for boxes (..., 4); at least as for one pixel."""
        size = (bboxes[..., 2:] - bboxes[..., :2]).clamp_min(1.0)
        return torch.cat([size, size], -1) * bboxes.new_tensor(self.stds)

    def encode(self, bboxes: Tensor, gt_bboxes: Tensor) -> Tensor:
        """Deltas (N, 4) that turn reference boxes (N, 4) into others."""
        bboxes, gt_bboxes = get_box_tensor(bboxes), get_box_tensor(gt_bboxes)
        return (gt_bboxes - bboxes) / self.scale(bboxes)

    def decode(
        self,
        bboxes: Tensor,
        pred_bboxes: Tensor,
        max_shape: Sequence[int] | None = None,
    ) -> Tensor:
        """Reference boxes (N, 4) and deltas (N, 4) or (N, 4 C) -> boxes of the deltas' shape.

        Args:
            bboxes: The reference boxes.
            pred_bboxes: Deltas, for class-specific regression those of all classes in a row.
            max_shape: Height and width of the image, where boxes end at its border.
        """
        reference = get_box_tensor(bboxes)[:, None]
        deltas = pred_bboxes.unflatten(-1, (-1, 4))
        sides = reference + deltas * self.scale(reference)
        low, high = reference[..., :2], reference[..., 2:]
        sign = sides.new_tensor(OUTWARD)
        centre = ((low + high) / 2).repeat(1, 1, 2)
        inner = MARGIN * (high - low).clamp_min(1.0).repeat(1, 1, 2)
        sides = centre + sign * (sign * (sides - centre)).maximum(inner)
        if self.clip_border and max_shape is not None:
            height, width = max_shape[:2]
            limit = sides.new_tensor([width, height, width, height])
            sides = sides.clamp_min(0).minimum(limit)
        return sides.flatten(-2)
