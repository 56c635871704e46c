"""``batched_nms`` of half-precision boxes."""

import functools
from typing import Any

import torch
from torch import Tensor

from aqf_det.compat.rebind import rebind

_HALF = (torch.float16, torch.bfloat16)


def separate_classes_in_float32() -> bool:
    """Let ``mmcv.ops.batched_nms`` suppress half-precision boxes as it does the same in float32.

    Fault: it keeps classes apart by shifting each by a multiple of the largest coordinate, in the
    type of the boxes. In half precision the shifted boxes round to wrong sizes or to none, and the
    wrong boxes are suppressed. The trick and its fault are described for torchvision's version in
    https://github.com/MultimediaTechLab/YOLO/pull/234

    Returns:
        Whether the function was replaced: not where it is right by itself.
    """
    from mmcv.ops.nms import batched_nms

    # One large box and two identical small ones, of which one has to go.
    boxes = torch.tensor([[0, 0, 512, 512], [0, 0, 1, 1], [0, 0, 1, 1]], dtype=torch.bfloat16)
    scores, classes = torch.tensor([0.9, 0.8, 0.7]).to(boxes), torch.tensor([0, 99, 99])
    _, kept = batched_nms(boxes, scores, classes, {"iou_threshold": 0.5})
    if kept.tolist() == [0, 1]:
        return False

    @functools.wraps(batched_nms)
    def batched_nms_in_float32(
        boxes: Tensor, scores: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if boxes.dtype not in _HALF:
            return batched_nms(boxes, scores, *args, **kwargs)
        detections, kept = batched_nms(boxes.float(), scores.float(), *args, **kwargs)
        return detections.to(boxes.dtype), kept

    for package in ("mmcv", "mmdet"):
        rebind(package, batched_nms, batched_nms_in_float32)
    return True
