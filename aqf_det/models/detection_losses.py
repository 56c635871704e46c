"""The detector's own losses; everything about distributions comes from ``aqf_core``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from aqf_core import losses as core


def focal_bce(logit: Tensor, target: Tensor) -> Tensor:
    """Elementwise ``|target - p|^2 BCE(p, target)`` with ``p = sigmoid(logit)``."""
    gap = (target - logit.sigmoid()).abs()
    return gap.square() * F.binary_cross_entropy_with_logits(logit, target, reduction="none")


def smooth_one_hot(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Class targets (P, C): one-hot mixed with the uniform distribution by ``smoothing``."""
    one_hot = F.one_hot(labels, num_classes).float()
    return one_hot * (1 - smoothing) + smoothing / num_classes


def gaussian_box_loss(
    name: str, mean: Tensor, log_sigma: Tensor, target: Tensor, stride: Tensor
) -> Tensor:
    """Loss of the stage-1 Gaussian per coordinate.

    Args:
        name: ``"kl_pixel"``, ``"kl"``, ``"nll"`` or ``"crps"``. All but the first measure residuals
            in cells, which makes objects of every level count alike.
        mean: (P, 4) boxes in pixels.
        log_sigma: (P, 4) log standard deviations in cells.
        target: (P, 4) ground truths in pixels.
        stride: (P,) pixels per cell.

    Returns:
        (P, 4).
    """
    cell = stride[:, None]
    if name == "kl_pixel":
        return core.gaussian_kl_loss(mean, 2 * (log_sigma + cell.log()), target, reduction="none")
    mean, target = mean / cell, target / cell
    if name == "kl":
        return core.gaussian_kl_loss(mean, 2 * log_sigma, target, reduction="none")
    score = core.gaussian_nll if name == "nll" else core.gaussian_crps
    return score(mean, log_sigma.exp(), target, reduction="none")


def pairwise_iou_max(boxes: Tensor, others: Tensor) -> Tensor:
    """Largest IoU of every box (N, 4) with any of ``others`` (G, 4); zero when there are none."""
    if len(others) == 0:
        return boxes.new_zeros(len(boxes))
    best = boxes.new_zeros(len(boxes))
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    # One object at a time: the (N, G) table of a crowded image would dominate the memory.
    for other in others:
        width = torch.minimum(boxes[:, 2], other[2]) - torch.maximum(boxes[:, 0], other[0])
        height = torch.minimum(boxes[:, 3], other[3]) - torch.maximum(boxes[:, 1], other[1])
        overlap = width.clamp_min(0) * height.clamp_min(0)
        union = area + (other[2] - other[0]) * (other[3] - other[1]) - overlap
        best = torch.maximum(best, overlap / union.clamp_min(1e-9))
    return best
