"""Hard and soft non-maximum suppression."""

import torch
import torchvision
from torch import Tensor

from aqf_det.compat.ops.precision import compute_dtype

NAIVE, LINEAR, GAUSSIAN = 0, 1, 2


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices of the boxes kept by greedy suppression, best score first.

    A box goes when its IoU with a kept box of a higher score is above the threshold. Among equal
    scores the earlier box wins.

    Args:
        boxes: ``(N, 4)`` as x1, y1, x2, y2.
        scores: ``(N,)``.
        iou_threshold: Suppress above this IoU.
        offset: 0, or 1 when a box includes its last pixel (width = x2 - x1 + 1).

    Returns:
        ``(K,)`` indices, int64.
    """
    corners = boxes.detach().to(compute_dtype(boxes))
    if offset:
        corners = torch.cat([corners[:, :2], corners[:, 2:] + offset], dim=1)
    # An IoU is computed in the boxes' precision; the threshold must be rounded likewise, or a box
    # at exactly the threshold is suppressed.
    threshold = torch.tensor(iou_threshold, dtype=corners.dtype, device="cpu").item()
    return torchvision.ops.nms(corners, scores.detach().to(corners.dtype), threshold)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Repeatedly take the best box and decay the scores of the others by their overlap with it.

    The decay is ``0`` or ``1 - IoU`` at IoU >= ``iou_threshold`` (naive, linear) or
    ``exp(-IoU^2 / sigma)`` (Gaussian). Boxes whose decayed score falls below ``min_score`` leave.

    Args:
        boxes: ``(N, 4)`` as x1, y1, x2, y2.
        scores: ``(N,)``.
        dets: ``(N, 5)``; its first K rows receive the kept boxes and their decayed scores.
        iou_threshold: Where the naive and the linear decay start.
        sigma: Width of the Gaussian decay.
        min_score: Boxes below this score are dropped.
        method: 0 naive, 1 linear, 2 Gaussian.
        offset: 0, or 1 when a box includes its last pixel.

    Returns:
        ``(K,)`` indices of the kept boxes in the order they were taken, int64.
    """
    corners = boxes.detach().to(compute_dtype(boxes))
    remaining_scores = scores.detach().to(corners.dtype).clone()
    areas = (corners[:, 2:] - corners[:, :2] + offset).prod(dim=1)
    remaining = torch.arange(len(corners), device=corners.device)
    kept: list[Tensor] = []
    kept_scores: list[Tensor] = []
    while len(remaining):
        best = int(remaining_scores.argmax())
        taken = remaining[best]
        kept.append(taken)
        kept_scores.append(remaining_scores[best])
        others = torch.arange(len(remaining), device=remaining.device) != best
        remaining, remaining_scores = remaining[others], remaining_scores[others]

        top_left = torch.maximum(corners[taken, :2], corners[remaining, :2])
        bottom_right = torch.minimum(corners[taken, 2:], corners[remaining, 2:])
        overlap = (bottom_right - top_left + offset).clamp(min=0).prod(dim=1)
        iou = overlap / (areas[taken] + areas[remaining] - overlap)
        remaining_scores = remaining_scores * _decay(iou, iou_threshold, sigma, method)
        survives = ~(remaining_scores < min_score)
        remaining, remaining_scores = remaining[survives], remaining_scores[survives]
    if not kept:
        return remaining
    indices = torch.stack(kept)
    dets[: len(indices), :4] = boxes.detach()[indices]
    dets[: len(indices), 4] = torch.stack(kept_scores).to(dets.dtype)
    return indices


def _decay(iou: Tensor, iou_threshold: float, sigma: float, method: int) -> Tensor:
    if method == GAUSSIAN:
        return torch.exp(-iou.square() / sigma)
    decayed = torch.zeros_like(iou) if method == NAIVE else 1 - iou
    return torch.where(iou >= iou_threshold, decayed, torch.ones_like(iou))
