"""The mirror image as a second view of a picture (test-time augmentation)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .affine_sides import mirrored, mirrored_boxes
from .prediction import Detections


@dataclass(frozen=True)
class View:
    """A batch of images as one trunk sees it.

    Attributes:
        images: (B, 3, H, W), what the network is given.
        maps: Its pyramid maps.
        flipped: Whether the images are mirrored.
    """

    images: Tensor
    maps: Sequence[Tensor]
    flipped: bool


def mirrored_images(images: Tensor, metas: Sequence[Mapping[str, Any]]) -> Tensor:
    """Images (B, 3, H, W), each mirrored inside its own width; padding stays on the right."""
    result = images.clone()
    for image, meta in zip(result, metas, strict=True):
        width = int(meta["img_shape"][1])
        image[..., :width] = image[..., :width].flip(-1)
    return result


def mirrored_detections(found: Detections, meta: Mapping[str, Any]) -> Detections:
    """Detections of a mirrored image in pixels of the image itself: x1 = W - x2', u = 1 - u'."""
    width = float(meta["img_shape"][1])
    return Detections(
        mirrored_boxes(found.boxes, width),
        found.scores,
        found.labels,
        mirrored(found.distribution, width),
    )
