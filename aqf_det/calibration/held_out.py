"""Base values of held-out boxes: how far out in its predicted distribution each true side lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from mmdet.structures import DetDataSample
from torch import Tensor

from aqf_core.errors import ShapeError

from ..datasets.transforms import to_network_pixels, to_original_pixels
from ..evaluation.sample_pairs import strict_pairs
from ..models.prediction import Detections, box_sizes

#: Truths beyond so many standard deviations all say "far out"; float32 tells them apart no more.
FARTHEST = 30.0


@dataclass(frozen=True)
class HeldOutBoxes:
    """Detections of held-out images that belong to a true box.

    Attributes:
        base_values: (n, 4), z = Phi^-1(F(x)) of the true coordinates.
        sizes: (n,) sqrt(area) of the predicted boxes in pixels of the original image.
        image: (n,) number of the image.
    """

    base_values: Tensor
    sizes: Tensor
    image: Tensor

    def __len__(self) -> int:
        return len(self.image)

    def select(self, index: Tensor) -> HeldOutBoxes:
        """Some of the boxes, by a mask or by positions."""
        return HeldOutBoxes(self.base_values[index], self.sizes[index], self.image[index])

    @classmethod
    def join(cls, parts: Iterable[HeldOutBoxes]) -> HeldOutBoxes:
        """All boxes of several sets."""
        parts = list(parts)
        return cls(*(torch.cat([getattr(p, f) for p in parts]) for f in cls.__annotations__))


def collect_held_out(
    detector: Any,
    loader: Iterable[Any],
    score_threshold: float = 0.1,
    iou_threshold: float = 0.5,
    report: Callable[[float], None] | None = None,
) -> HeldOutBoxes:
    """Predict held-out images and compare with the truth.

    The same pairs are taken as by the strict protocol of
    :class:`~aqf_det.evaluation.BoxUncertaintyMetric`: calibration is judged on what it is fitted
    to. An earlier calibration plays no part.

    Args:
        detector: With a ``detect`` method, such as :class:`~aqf_det.models.FlowDetector`.
        loader: Data loader with a test pipeline: annotations in pixels of the original image.
        score_threshold: Detections below take no part.
        iou_threshold: Least overlap of a detection and its true box.
        report: Called with the finished share.
    """
    was_training = detector.training
    detector.eval()
    parts, images = [], 0
    for step, batch in enumerate(loader):
        ready = detector.data_preprocessor(batch, False)
        with torch.no_grad():
            found = detector.detect(ready["inputs"], ready["data_samples"])
            for detections, sample in zip(found, ready["data_samples"], strict=True):
                values, sizes = compare_with_truth(
                    detections, sample, score_threshold, iou_threshold
                )
                parts.append(HeldOutBoxes(values, sizes, torch.full((len(sizes),), images)))
                images += 1
        if report is not None:
            report((step + 1) / len(loader))  # type: ignore[arg-type]
    detector.train(was_training)
    result = HeldOutBoxes.join(parts) if parts else None
    if result is None or len(result) < 2:
        raise ShapeError(
            f"{images} held-out images gave {0 if result is None else len(result)} detections that "
            "match a true box, too few to calibrate; check the weights and the split."
        )
    return result


def compare_with_truth(
    found: Detections, sample: DetDataSample, score_threshold: float, iou_threshold: float
) -> tuple[Tensor, Tensor]:
    """Base values (P, 4) and sizes (P,) of the matched detections of one image.

    Args:
        found: What was found.
        sample: The image's metainfo, and its annotations in pixels of the original image.
        score_threshold: See :func:`collect_held_out`.
        iou_threshold: Likewise.
    """
    boxes = to_original_pixels(found.boxes, sample.metainfo)
    chosen, truths = strict_pairs(
        boxes, found.scores, found.labels, sample, score_threshold, iou_threshold
    )
    if len(chosen) == 0:
        return torch.zeros(0, 4), torch.zeros(0)
    target = to_network_pixels(truths, sample.metainfo)
    z = found.distribution.select(chosen).marginal().to_base(target)
    return z.clamp(-FARTHEST, FARTHEST).float().cpu(), box_sizes(boxes[chosen]).cpu()
