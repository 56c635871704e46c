"""Which detection is judged against which ground truth.

Both protocols compare a detection with the ground truth of its image and class that it overlaps
most.

* ``strict``: detections in order of falling score; a pair needs IoU >= 0.5 and a ground truth that
is
  neither difficult nor claimed by a better detection. Every ground truth is judged at most once.
* ``paper``: IoU > 0.5 is enough, duplicates count again; tables average over classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PROTOCOLS = ("strict", "paper")


@dataclass(frozen=True)
class Matches:
    """Pairs of one image, every array of length P, in order of class and falling score.

    Attributes:
        detection: Index of the detection.
        truth: Index of the ground truth.
        iou: Their intersection over union.
        strict: Whether the pair counts under the strict protocol.
        paper: Whether it counts under the paper's.
    """

    detection: NDArray[np.int64]
    truth: NDArray[np.int64]
    iou: NDArray[np.float64]
    strict: NDArray[np.bool_]
    paper: NDArray[np.bool_]


def pairwise_iou(first: NDArray, second: NDArray) -> NDArray[np.float64]:
    """IoU of ``(N, 4)`` and ``(M, 4)`` xyxy boxes, ``(N, M)``; 0 where both are empty."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    intersection = np.prod(np.clip(high - low, 0, None), axis=-1)
    area_first, area_second = (
        np.prod(np.clip(box[:, 2:] - box[:, :2], 0, None), axis=-1) for box in (first, second)
    )
    union = area_first[:, None] + area_second[None] - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)


def match_detections(
    boxes: NDArray,
    scores: NDArray,
    labels: NDArray,
    truths: NDArray,
    truth_labels: NDArray,
    difficult: NDArray | None = None,
    *,
    score_threshold: float = 0.1,
    iou_threshold: float = 0.5,
) -> Matches:
    """Match the detections of one image with its ground truths under both protocols.

    Ties in score keep the given order; among equal overlaps the first ground truth is taken.

    Args:
        boxes: ``(N, 4)`` xyxy detections.
        scores: ``(N,)``; detections below ``score_threshold`` take no part.
        labels: ``(N,)`` integer classes.
        truths: ``(M, 4)`` xyxy ground truths.
        truth_labels: ``(M,)``.
        difficult: ``(M,)`` bool; such a ground truth absorbs detections but never makes a pair.
        score_threshold: Lowest score taken.
        iou_threshold: Overlap of a pair (``>=`` strict, ``>`` paper).

    Returns:
        The pairs that count under at least one protocol.
    """
    scores, labels = np.asarray(scores, float), np.asarray(labels)
    truth_labels = np.asarray(truth_labels)
    hard = np.zeros(len(truth_labels), bool) if difficult is None else np.asarray(difficult, bool)
    overlap = pairwise_iou(np.reshape(boxes, (-1, 4)), np.reshape(truths, (-1, 4)))
    overlap[labels[:, None] != truth_labels[None]] = -1.0
    claimed = np.zeros(len(truth_labels), bool)
    pairs: list[tuple[int, int, float, bool, bool]] = []
    order = np.lexsort((np.arange(len(scores)), -scores, labels))
    for detection in order[scores[order] >= score_threshold]:
        if overlap.shape[1] == 0:
            break
        truth = int(overlap[detection].argmax())
        iou = float(overlap[detection, truth])
        strict, paper = not claimed[truth], iou > iou_threshold
        if iou < iou_threshold or hard[truth] or not (strict or paper):
            continue
        pairs.append((int(detection), truth, iou, strict, paper))
        claimed[truth] = True
    columns = list(zip(*pairs, strict=True)) if pairs else [()] * 5
    return Matches(
        detection=np.array(columns[0], dtype=np.int64),
        truth=np.array(columns[1], dtype=np.int64),
        iou=np.array(columns[2], dtype=np.float64),
        strict=np.array(columns[3], dtype=bool),
        paper=np.array(columns[4], dtype=bool),
    )
