"""Reading annotations and predictions out of the data samples mmengine hands to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmengine.logging import MMLogger
from numpy.typing import NDArray

from aqf_core.errors import AQFError

from ..arrays import as_numpy
from ..quantile_tables import check_levels


class NoBoxDistributionError(AQFError, ValueError):
    """The model predicts boxes only, and a metric asks how sure it is of them."""


@dataclass(frozen=True)
class GroundTruths:
    """The annotated objects of one image: first the M ordinary ones, then the difficult ones.

    Attributes:
        boxes: ``(M + D, 4)`` xyxy in original-image pixels.
        labels: ``(M + D,)``.
        difficult: ``(M + D,)`` bool; such an object is neither asked for nor held against anyone.
    """

    boxes: NDArray
    labels: NDArray[np.int64]
    difficult: NDArray[np.bool_]


def read_truths(sample: Mapping[str, Any]) -> GroundTruths:
    """``gt_instances`` and, where present, ``ignored_instances``."""
    parts = [sample["gt_instances"]]
    ignored = sample.get("ignored_instances") or {}
    if "bboxes" in ignored:
        parts.append(ignored)
    boxes = [as_numpy(part["bboxes"]).reshape(-1, 4) for part in parts]
    labels = [as_numpy(part["labels"]).astype(int) for part in parts]
    return GroundTruths(
        boxes=np.concatenate(boxes),
        labels=np.concatenate(labels),
        difficult=np.arange(sum(map(len, boxes))) >= len(boxes[0]),
    )


def read_levels(sample: Mapping[str, Any], metric: str) -> tuple[float, ...] | None:
    """Levels of ``pred_instances.bbox_quantiles``, checked; None where nothing was detected and no
    levels are given.

    Args:
        sample: The data sample.
        metric: Who asks, for the error message.
    """
    found = sample["pred_instances"]
    levels = None
    if "quantile_levels" in sample:
        levels = tuple(check_levels(sample["quantile_levels"]).tolist())
        if "bbox_quantiles" in found and found["bbox_quantiles"].shape[1] != len(levels):
            raise ValueError(
                f"bbox_quantiles has {found['bbox_quantiles'].shape[1]} levels, but "
                f"quantile_levels names {len(levels)}."
            )
    elif len(found["bboxes"]):
        raise NoBoxDistributionError(
            f"{metric} needs quantile_levels in the data sample's metainfo; "
            "the model predicts no box distribution. Use a head of aqf_det."
        )
    if len(found["bboxes"]) and "bbox_quantiles" not in found:
        raise NoBoxDistributionError(
            f"{metric} needs pred_instances.bbox_quantiles; the model predicts no "
            "box distribution. Use a head of aqf_det."
        )
    return levels


def image_size(sample: Mapping[str, Any], metric: str) -> tuple[int, int]:
    """``(height, width)`` of the original image."""
    shape = sample.get("ori_shape")
    if shape is None:
        raise ValueError(
            f"{metric} needs ori_shape in the data sample's metainfo; add it to the meta_keys of "
            "the pipeline's packing step."
        )
    return int(shape[0]), int(shape[1])


def warn_of_wrong_frame(sample: Mapping[str, Any], truths: NDArray) -> bool:
    """Warn when ground truths ``(M, 4)`` cannot be in original-image pixels; whether it did."""
    shape = sample.get("ori_shape")
    if shape is None or len(truths) == 0:
        return False
    height, width = shape[:2]
    wrong = bool((truths.max(0)[2:] > (1.02 * width + 2, 1.02 * height + 2)).any())
    if wrong:
        MMLogger.get_current_instance().warning(
            "ground truths reach beyond the original image: load annotations after resizing "
            "in the test pipeline, or all distances in pixels are wrong."
        )
    return wrong
