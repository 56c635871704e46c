"""``batched_nms`` of no boxes."""

import functools
from typing import Any

import torch
from torch import Tensor

from aqf_det.compat.rebind import rebind


def accept_no_boxes() -> bool:
    """Let ``mmcv.ops.batched_nms`` return no detections when it is given no boxes.

    Fault: it takes the maximum of all coordinates first, which an empty tensor does not have.
    https://github.com/open-mmlab/mmcv/issues/1689

    Returns:
        Whether the function was replaced: not where it accepts no boxes by itself.
    """
    from mmcv.ops.nms import batched_nms

    try:
        batched_nms(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), {"iou_threshold": 0.5})
        return False
    except (RuntimeError, IndexError):
        pass

    @functools.wraps(batched_nms)
    def batched_nms_or_nothing(
        boxes: Tensor, scores: Tensor, idxs: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if len(boxes) == 0:
            nothing = torch.zeros(0, dtype=torch.long, device=boxes.device)
            return torch.cat([boxes, scores[:, None]], dim=1), nothing
        return batched_nms(boxes, scores, idxs, *args, **kwargs)

    for package in ("mmcv", "mmdet"):
        rebind(package, batched_nms, batched_nms_or_nothing)
    return True
