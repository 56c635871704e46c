"""Pipeline steps the YOLO recipe needs and mmdet does not have.

Training order: load, flip, :class:`ObjectPreservingCrop`, :class:`ObjectPreservingTranslate` in the
inner data set; :class:`WeightedMixUp`, :class:`Letterbox`, :class:`PackWeightedDetInputs` in a
``MultiImageMixDataset`` around it. At test time annotations are loaded *after* the letterbox, so
that ground truths stay in pixels of the original image.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import mmcv
import numpy as np
import torch
from mmcv.transforms import BaseTransform, LoadImageFromFile
from mmdet.datasets.transforms import PackDetInputs
from mmdet.registry import TRANSFORMS
from mmdet.structures.bbox import HorizontalBoxes, autocast_box_type
from mmengine import fileio
from torch import Tensor

Results = dict[str, Any]
META_KEYS = (
    "img_id",
    "img_path",
    "ori_shape",
    "img_shape",
    "scale_factor",
    "pad_param",
    "flip",
    "flip_direction",
)


class CorruptSampleError(ValueError):
    """An image or annotation file that cannot be read; the message names the file."""


def _is_truncated_jpeg(data: bytes) -> bool:
    """Whether a JPEG stops before its end marker.

    OpenCV decodes such a file without complaint and leaves the missing part grey. The end marker
    must come after the last start-of-scan marker, because an embedded thumbnail has an end marker
    of its own.
    """
    return data.startswith(b"\xff\xd8") and data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda")


@TRANSFORMS.register_module()
class LoadCheckedImage(LoadImageFromFile):
    """Load an image; a missing or damaged one raises :class:`CorruptSampleError` by name."""

    def transform(self, results: Results) -> Results:
        """Read ``img_path`` into ``img`` (H, W, 3, BGR) and set ``img_shape`` and ``ori_shape``."""
        path = results["img_path"]
        try:
            data = fileio.get(path, backend_args=self.backend_args)
        except OSError as error:
            raise CorruptSampleError(f"cannot read image {path}: {error}") from error
        if _is_truncated_jpeg(data):
            raise CorruptSampleError(f"image {path} is a truncated JPEG ({len(data)} bytes)")
        try:
            image = mmcv.imfrombytes(data, flag=self.color_type, backend=self.imdecode_backend)
        except (cv2.error, OSError, ValueError) as error:
            raise CorruptSampleError(f"cannot decode image {path}: {error}") from error
        if image is None:
            raise CorruptSampleError(f"cannot decode image {path} ({len(data)} bytes)")
        results["img"] = image.astype(np.float32) if self.to_float32 else image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        return results


@TRANSFORMS.register_module()
class Letterbox(BaseTransform):
    """Scale an image into a fixed canvas keeping its aspect ratio; grey bars fill the rest.

    Adds ``scale_factor = (sx, sy)`` (the exact ratio of rounded to original size, per axis) and
    ``pad_param = [top, bottom, left, right]`` in canvas pixels, so that
    ``x_canvas = x * sx + left`` and ``y_canvas = y * sy + top``; :func:`to_original_pixels` inverts
    it.

    Args:
        size: Canvas side, or ``(height, width)``.
        fill: Grey value of the bars.
    """

    def __init__(self, size: int | Sequence[int], fill: int = 128) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        if height < 1 or width < 1:
            raise ValueError(f"Letterbox size must be positive, got {size}.")
        self.height, self.width, self.fill = int(height), int(width), fill

    @autocast_box_type()
    def transform(self, results: Results) -> Results:
        """Letterbox ``img`` and, where already loaded, ``gt_bboxes``."""
        image = results["img"]
        height, width = image.shape[:2]
        ratio = min(self.height / height, self.width / width)
        new_h = min(self.height, max(1, round(height * ratio)))
        new_w = min(self.width, max(1, round(width * ratio)))
        interpolation = cv2.INTER_AREA if ratio < 1 else cv2.INTER_LINEAR
        canvas = np.full((self.height, self.width, *image.shape[2:]), self.fill, image.dtype)
        top, left = (self.height - new_h) // 2, (self.width - new_w) // 2
        canvas[top : top + new_h, left : left + new_w] = (
            image
            if (new_h, new_w) == (height, width)
            else cv2.resize(image, (new_w, new_h), interpolation=interpolation)
        )
        bottom, right = self.height - new_h - top, self.width - new_w - left
        scale = (new_w / width, new_h / height)
        results["img"] = canvas
        results["img_shape"] = canvas.shape[:2]
        results["scale_factor"] = scale
        results["pad_param"] = np.array([top, bottom, left, right], dtype=np.float32)
        if results.get("gt_bboxes") is not None:
            results["gt_bboxes"].rescale_(scale)
            results["gt_bboxes"].translate_((left, top))
        return results

    def __repr__(self) -> str:
        return f"Letterbox(size=({self.height}, {self.width}), fill={self.fill})"


def to_original_pixels(boxes: Tensor, meta: Mapping[str, Any]) -> Tensor:
    """Map boxes from network-input pixels to original-image pixels.

    Args:
        boxes: ``(..., 4)`` xyxy, e.g. point boxes ``(N, 4)`` or quantiles ``(N, K, 4)``.
        meta: Image metainfo with ``scale_factor`` and, after :class:`Letterbox`, ``pad_param``.

    Returns:
        Tensor of the same shape: ``(boxes - (left, top, left, top)) / (sx, sy, sx, sy)``.
    """
    scale, offset = letterbox_map(boxes, meta)
    return (boxes - offset) / scale


def to_network_pixels(boxes: Tensor, meta: Mapping[str, Any]) -> Tensor:
    """The inverse of :func:`to_original_pixels`."""
    scale, offset = letterbox_map(boxes, meta)
    return boxes * scale + offset


def letterbox_map(boxes: Tensor, meta: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Scale and offset (4,) that map original-image pixels to network-input pixels."""
    sx, sy = meta.get("scale_factor", (1.0, 1.0))[:2]
    top, _, left, _ = meta.get("pad_param", (0.0, 0.0, 0.0, 0.0))
    return boxes.new_tensor([sx, sy, sx, sy]), boxes.new_tensor([left, top, left, top])


def picture_frame(meta: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """The rectangle (left, top, right, bottom) that the picture fills in the network's input.

    Example:
        >>> picture_frame({"img_shape": (320, 320), "pad_param": [40, 40, 0, 0]})
        (0.0, 40.0, 320.0, 280.0)
    """
    height, width = meta["img_shape"][:2]
    top, bottom, left, right = meta.get("pad_param", (0.0, 0.0, 0.0, 0.0))
    return float(left), float(top), float(width - right), float(height - bottom)


def _extent(results: Results) -> tuple[float, float, float, float] | None:
    """The smallest rectangle that holds every ground truth, or None without objects."""
    boxes = results.get("gt_bboxes")
    if boxes is None or len(boxes) == 0:
        return None
    low, high = boxes.tensor[:, :2].amin(0), boxes.tensor[:, 2:].amax(0)
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def _check_probability(prob: float) -> float:
    if not 0 <= prob <= 1:
        raise ValueError(f"prob must lie in [0, 1], got {prob}.")
    return prob


@TRANSFORMS.register_module()
class ObjectPreservingCrop(BaseTransform):
    """Crop an image at random so that no object loses a pixel.

    Each edge is drawn uniformly between the image border and the nearest object. Images without
    objects keep at least ``min_keep`` of either side.

    Args:
        prob: Probability of cropping at all.
        min_keep: Smallest share of width and height kept when there is no object.
    """

    def __init__(self, prob: float = 0.5, min_keep: float = 0.5) -> None:
        self.prob = _check_probability(prob)
        self.min_keep = min_keep

    @autocast_box_type()
    def transform(self, results: Results) -> Results:
        """Crop ``img`` and shift ``gt_bboxes``."""
        if random.random() >= self.prob:
            return results
        height, width = results["img"].shape[:2]
        margin_x, margin_y = width * (1 - self.min_keep) / 2, height * (1 - self.min_keep) / 2
        x1, y1, x2, y2 = _extent(results) or (
            margin_x,
            margin_y,
            width - margin_x,
            height - margin_y,
        )
        left = int(random.uniform(0, max(0.0, x1)))
        top = int(random.uniform(0, max(0.0, y1)))
        right = int(np.ceil(random.uniform(min(x2, width), width)))
        bottom = int(np.ceil(random.uniform(min(y2, height), height)))
        results["img"] = np.ascontiguousarray(results["img"][top:bottom, left:right])
        results["img_shape"] = results["img"].shape[:2]
        if results.get("gt_bboxes") is not None:
            results["gt_bboxes"].translate_((-left, -top))
        return results

    def __repr__(self) -> str:
        return f"ObjectPreservingCrop(prob={self.prob}, min_keep={self.min_keep})"


@TRANSFORMS.register_module()
class ObjectPreservingTranslate(BaseTransform):
    """Shift an image by whole pixels so that every object stays inside; no-op without objects.

    Args:
        prob: Probability of shifting at all.
        fill: Grey value of the uncovered part.
    """

    def __init__(self, prob: float = 0.5, fill: int = 128) -> None:
        self.prob, self.fill = _check_probability(prob), fill

    @autocast_box_type()
    def transform(self, results: Results) -> Results:
        """Shift ``img`` and ``gt_bboxes``."""
        extent = _extent(results)
        if extent is None or random.random() >= self.prob:
            return results
        height, width = results["img"].shape[:2]
        dx = int(random.uniform(-max(0.0, extent[0]), max(0.0, width - extent[2])))
        dy = int(random.uniform(-max(0.0, extent[1]), max(0.0, height - extent[3])))
        shifted = np.full_like(results["img"], self.fill)
        shifted[max(0, dy) : height + min(0, dy), max(0, dx) : width + min(0, dx)] = results["img"][
            max(0, -dy) : height - max(0, dy), max(0, -dx) : width - max(0, dx)
        ]
        results["img"] = shifted
        results["gt_bboxes"].translate_((dx, dy))
        return results

    def __repr__(self) -> str:
        return f"ObjectPreservingTranslate(prob={self.prob}, fill={self.fill})"


@TRANSFORMS.register_module()
class WeightedMixUp(BaseTransform):
    r"""Blend two images and give every box the weight of its image.

    ``img = lambda * img_a + (1 - lambda) * img_b`` with :math:`\lambda \sim Beta(alpha, alpha)`;
    boxes of both images are kept, and ``gt_weights`` (float32, one per box) holds ``lambda`` or ``1
    - lambda``. Without a partner all weights are 1. Images are aligned at their upper left corner.
    Used inside ``MultiImageMixDataset``, which asks :meth:`get_indexes` for the partner, so an
    image that is not mixed costs no second read.

    Args:
        alpha: Parameter of the symmetric Beta law.
        prob: Probability of mixing.
        fill: Grey value where one of the images is smaller.
    """

    def __init__(self, alpha: float = 1.5, prob: float = 0.5, fill: int = 128) -> None:
        if alpha <= 0:
            raise ValueError(f"alpha must be positive, got {alpha}.")
        self.alpha, self.prob, self.fill = alpha, _check_probability(prob), fill

    def get_indexes(self, dataset: Sequence[Any]) -> list[int]:
        """Index of the partner image, or nothing when this image stays unmixed."""
        if random.random() >= self.prob:
            return []
        return [random.randrange(len(dataset))]

    @autocast_box_type()
    def transform(self, results: Results) -> Results:
        """Blend with the first of ``mix_results``, if any, and set ``gt_weights``."""
        count = len(results["gt_bboxes"])
        partners = results.get("mix_results") or []
        if not partners:
            results["gt_weights"] = np.ones(count, dtype=np.float32)
            return results
        partner = partners[0]
        lam = random.betavariate(self.alpha, self.alpha)
        results["img"] = self._blend(results["img"], partner["img"], lam)
        results["img_shape"] = results["img"].shape[:2]
        other = torch.as_tensor(
            getattr(partner["gt_bboxes"], "tensor", partner["gt_bboxes"]), dtype=torch.float32
        ).reshape(-1, 4)
        boxes = torch.cat([results["gt_bboxes"].tensor, other])
        results["gt_bboxes"] = HorizontalBoxes(boxes)
        for key in ("gt_bboxes_labels", "gt_ignore_flags"):
            results[key] = np.concatenate([results[key], partner[key]])
        results["gt_weights"] = np.array([lam] * count + [1 - lam] * len(other), dtype=np.float32)
        return results

    def _blend(self, first: np.ndarray, second: np.ndarray, lam: float) -> np.ndarray:
        height = max(first.shape[0], second.shape[0])
        width = max(first.shape[1], second.shape[1])
        mixed = np.zeros((height, width, *first.shape[2:]), dtype=np.float32)
        for image, weight in ((first, lam), (second, 1 - lam)):
            canvas = np.full_like(mixed, self.fill)
            canvas[: image.shape[0], : image.shape[1]] = image
            mixed += weight * canvas
        return np.rint(mixed).astype(first.dtype) if first.dtype == np.uint8 else mixed

    def __repr__(self) -> str:
        return f"WeightedMixUp(alpha={self.alpha}, prob={self.prob}, fill={self.fill})"


@TRANSFORMS.register_module()
class PackWeightedDetInputs(PackDetInputs):
    """mmdet's packer, also for ``gt_weights`` (``gt_instances.weights``) and ``pad_param``."""

    mapping_table = {**PackDetInputs.mapping_table, "gt_weights": "weights"}

    def __init__(self, meta_keys: Sequence[str] = META_KEYS) -> None:
        super().__init__(meta_keys=tuple(meta_keys))
