"""Pairs of detections and true boxes of one image, as tensors."""

from __future__ import annotations

import torch
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import get_box_tensor
from torch import Tensor

from ..arrays import as_numpy
from .matching import match_detections


def strict_pairs(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    sample: DetDataSample,
    score_threshold: float = 0.1,
    iou_threshold: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Detections that belong to a true box under the strict protocol.

    Args:
        boxes: (N, 4) detections in the pixels of the sample's annotations.
        scores: (N,), and labels (N,).
        labels: See scores.
        sample: With ``gt_instances`` and, where some are difficult, ``ignored_instances``.
        score_threshold: Detections below take no part.
        iou_threshold: Least overlap of a pair.

    Returns:
        Positions (P,) of the detections and their true boxes (P, 4).
    """
    known = [sample.gt_instances]
    if "ignored_instances" in sample:
        known.append(sample.ignored_instances)
    truths = torch.cat([get_box_tensor(k.bboxes).reshape(-1, 4).to(boxes) for k in known])
    truth_labels = torch.cat([k.labels for k in known])
    matches = match_detections(
        as_numpy(boxes),
        as_numpy(scores),
        as_numpy(labels),
        as_numpy(truths),
        as_numpy(truth_labels),
        as_numpy(torch.arange(len(truth_labels)) >= len(known[0])),
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
    )
    chosen = torch.from_numpy(matches.detection[matches.strict]).to(boxes.device)
    truth = torch.from_numpy(matches.truth[matches.strict]).to(boxes.device)
    return chosen, truths[truth]
