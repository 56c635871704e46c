"""Pictures of boxes that know how sure they are.

A thick box is the point prediction; on each side thin lines show where the quantiles .1, .2 ... .9
of that side lie, over a faint band from .1 to .9. A sharp side shows one line, an unsure one a fan.
"""

from __future__ import annotations

import colorsys
import functools
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from mmdet.registry import VISUALIZERS
from mmdet.visualization import DetLocalVisualizer
from mmengine.dist import master_only
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from .arrays import as_numpy
from .quantile_tables import quantiles_at

DRAWN_LEVELS = tuple(round(0.1 * i, 1) for i in range(1, 10))
#: Longer side of a picture: on a photo of 500 pixels thin lines would run into each other.
MIN_SIDE = 1000
_SHIFT = 4  # OpenCV draws at positions in 1/16 pixel

Colour = tuple[int, int, int]
Picture = NDArray[np.uint8]


def class_colour(label: int) -> Colour:
    """A bright RGB colour per class; neighbouring classes get distant hues."""
    hue = (0.02 + 0.61803398875 * label) % 1.0
    rgb = np.array(colorsys.hsv_to_rgb(hue, 0.78, 1.0))
    luminance = float(rgb @ (0.299, 0.587, 0.114))
    lightening = max(0.0, (0.62 - luminance) / (1 - luminance))  # blues are dark on photographs
    red, green, blue = np.rint(255 * (rgb + (1 - rgb) * lightening)).astype(int).tolist()
    return red, green, blue


def enlargement(shape: Sequence[int], min_side: int = MIN_SIDE) -> float:
    """Factor that makes the longer side of a small image ``min_side``; 1 for larger images."""
    return max(1.0, min_side / max(shape[:2]))


@functools.lru_cache(maxsize=8)
def _font(size: int) -> Any:
    from matplotlib import font_manager

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)


class _Canvas:
    """An RGB picture with anti-aliased, transparent strokes at fractional positions."""

    def __init__(self, image: Picture) -> None:
        self.pixels = np.ascontiguousarray(image)
        self.unit = max(1.0, max(image.shape[:2]) / 800)  # line widths follow the picture's size
        self._labels: list[tuple[float, float, float, float]] = []

    def strokes(
        self,
        segments: Sequence[Sequence[float]],
        colour: Colour,
        width: float,
        alpha: float,
    ) -> None:
        """Draw ``(x1, y1, x2, y2)`` segments as one layer of the given opacity."""
        points = np.asarray(segments, float)
        pad = width * self.unit + 2
        height, breadth = self.pixels.shape[:2]
        low = np.floor(np.minimum(points[:, :2], points[:, 2:]).min(0) - pad)
        high = np.ceil(np.maximum(points[:, :2], points[:, 2:]).max(0) + pad)
        x1, y1 = np.clip(low, 0, (breadth, height)).astype(int)
        x2, y2 = np.clip(high, 0, (breadth, height)).astype(int)
        if x2 <= x1 or y2 <= y1:
            return
        area = self.pixels[y1:y2, x1:x2]
        layer = area.copy()
        # Pixel centres lie at half-integer coordinates, OpenCV puts them at integers.
        fixed = np.rint((points - (x1, y1, x1, y1) - 0.5) * 2**_SHIFT).astype(int)
        fixed = np.clip(fixed, -(2**15), 2**15)
        for ax, ay, bx, by in fixed.tolist():
            thickness = max(1, round(width * self.unit))
            cv2.line(layer, (ax, ay), (bx, by), colour, thickness, cv2.LINE_AA, _SHIFT)
        area[:] = cv2.addWeighted(layer, alpha, area, 1 - alpha, 0)

    def band(self, rect: Sequence[float], colour: Colour, alpha: float) -> None:
        """Tint a rectangle."""
        height, breadth = self.pixels.shape[:2]
        x1, x2 = np.clip(np.rint([rect[0], rect[2]]), 0, breadth).astype(int)
        y1, y2 = np.clip(np.rint([rect[1], rect[3]]), 0, height).astype(int)
        area = self.pixels[y1:y2, x1:x2]
        area[:] = np.rint(area * (1 - alpha) + np.array(colour) * alpha)

    def label(self, text: str, box: Sequence[float], colour: Colour) -> None:
        """Write a caption at the box where it fits best: above, below, or inside it."""
        font = _font(round(11 * self.unit))
        left, top, right, bottom = font.getbbox(text)
        pad = 3 * self.unit
        width, height = right - left + 3 * pad, bottom - top + 2 * pad
        limit_y, limit_x = self.pixels.shape[:2]
        x = float(np.clip(box[0], 0, max(0.0, limit_x - width)))
        gap = 3 * self.unit
        rows = (box[1] - height - gap, box[3] + gap, box[1] + gap, box[1] + 2 * gap + height)
        places = [(x, y, x + width, y + height) for y in rows]
        inside = [p for p in places if p[1] >= 0 and p[3] <= limit_y] or [(x, 0, x + width, height)]
        free = [p for p in inside if not any(map(functools.partial(_touch, p), self._labels))]
        place = (free or inside)[0]
        self._labels.append(place)
        self.band(place, (12, 12, 12), 0.75)
        self.band((place[0], place[1], place[0] + pad, place[3]), colour, 1.0)
        picture = Image.fromarray(self.pixels)
        origin = (place[0] + 2 * pad - left, place[1] + pad - top)
        ImageDraw.Draw(picture).text(origin, text, fill=(255, 255, 255), font=font)
        self.pixels = np.array(picture)


def _touch(first: Sequence[float], second: Sequence[float]) -> bool:
    wide = min(first[2], second[2]) > max(first[0], second[0])
    return wide and min(first[3], second[3]) > max(first[1], second[1])


def _side_segment(box: NDArray, side: int, position: float) -> tuple[float, float, float, float]:
    """The line of side x1, y1, x2 or y2 at ``position``, as long as the box is there."""
    if side % 2 == 0:
        return position, box[1], position, box[3]
    return box[0], position, box[2], position


def _draw_spread(canvas: _Canvas, box: NDArray, quantiles: NDArray, colour: Colour) -> None:
    """Bands and quantile lines ``(9, 4)`` of one box."""
    for side in range(4):
        low, high = quantiles[0, side], quantiles[-1, side]
        rect = (low, box[1], high, box[3]) if side % 2 == 0 else (box[0], low, box[2], high)
        canvas.band(rect, colour, 0.16)
    lines = [[_side_segment(box, side, row[side]) for side in range(4)] for row in quantiles]
    # One dark layer below all lines: where they are close, no line shades its neighbour.
    canvas.strokes([segment for line in lines for segment in line], (0, 0, 0), 3.0, 0.35)
    for level, segments in zip(DRAWN_LEVELS, lines, strict=True):
        strength = 1 - 2 * abs(level - 0.5)  # 1 at the median, 0.2 at .1 and .9
        canvas.strokes(segments, colour, 1.0, 0.7 + 0.3 * strength)


def _outline(box: Sequence[float]) -> list[tuple[float, float, float, float]]:
    x1, y1, x2, y2 = box
    return [(x1, y1, x2, y1), (x2, y1, x2, y2), (x2, y2, x1, y2), (x1, y2, x1, y1)]


def _dashes(box: Sequence[float], length: float) -> list[tuple[float, float, float, float]]:
    pieces = []
    for x1, y1, x2, y2 in _outline(box):
        count = max(1, round(np.hypot(x2 - x1, y2 - y1) / (2 * length)))
        for i in range(count):
            a, b = i / count, (i + 0.5) / count
            dx, dy = x2 - x1, y2 - y1
            pieces.append((x1 + a * dx, y1 + a * dy, x1 + b * dx, y1 + b * dy))
    return pieces


def draw_quantile_boxes(
    image: Picture,
    boxes: ArrayLike,
    labels: Sequence[int],
    *,
    quantiles: ArrayLike | None = None,
    levels: ArrayLike | None = None,
    captions: Sequence[str] | None = None,
    colours: Sequence[Colour] | None = None,
    truths: ArrayLike | None = None,
) -> Picture:
    """Draw boxes with their quantile lines on a copy of an image.

    Args:
        image: ``(H, W, 3)`` RGB, uint8.
        boxes: ``(N, 4)`` xyxy in pixels of ``image``; the last is drawn first.
        labels: N class indices, for the colours.
        quantiles: ``(N, K, 4)``; without them only boxes are drawn.
        levels: ``(K,)`` levels of ``quantiles``.
        captions: N texts.
        colours: N RGB colours instead of those by class.
        truths: ``(M, 4)`` ground truths, drawn as dashed white boxes.

    Returns:
        The picture, RGB.
    """
    points = np.asarray(boxes, float).reshape(-1, 4)
    canvas = _Canvas(image.copy())
    tints = colours or [class_colour(int(label)) for label in labels]
    order = range(len(points) - 1, -1, -1)
    if quantiles is not None and levels is None:
        raise ValueError("quantiles need the levels they belong to.")
    if quantiles is not None and levels is not None and len(points):
        spread = quantiles_at(levels, quantiles, DRAWN_LEVELS)
        for i in order:
            _draw_spread(canvas, points[i], spread[i], tints[i])
    for i in order:
        canvas.strokes(_outline(points[i]), (0, 0, 0), 4.2, 0.45)
        canvas.strokes(_outline(points[i]), tints[i], 2.6, 1.0)
    for box in np.asarray(truths if truths is not None else [], float).reshape(-1, 4):
        dashes = _dashes(box.tolist(), 7 * canvas.unit)
        canvas.strokes(dashes, (0, 0, 0), 2.6, 0.5)
        canvas.strokes(dashes, (255, 255, 255), 1.2, 1.0)
    for i, text in enumerate(captions or []):
        canvas.label(text, points[i], tints[i])
    return canvas.pixels


@VISUALIZERS.register_module()
class QuantileBoxVisualizer(DetLocalVisualizer):
    """mmdet's visualizer with quantile lines on predicted boxes.

    Works with ``DetVisualizationHook`` and every mmengine backend. Predictions without
    ``bbox_quantiles`` are drawn as plain boxes. Captions show class, score and the mean standard
    deviation of the four sides.

    Args:
        name: Name of the instance, as mmengine's visualizer registry wants it.
        min_side: Smaller images are enlarged until their longer side has this many pixels.
        overlay_truth: Draw ground truths dashed on the prediction instead of in a picture beside
            it.
        **kwargs: As for ``DetLocalVisualizer``; ``bbox_color`` (one RGB tuple) overrides class
        colours.
    """

    def __init__(
        self,
        name: str = "visualizer",
        *,
        min_side: int = MIN_SIDE,
        overlay_truth: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.min_side, self.overlay_truth = min_side, overlay_truth
        self._factor = 1.0
        self._levels: Sequence[float] | None = None
        self._truths: NDArray | None = None

    @master_only
    def add_datasample(  # type: ignore[no-untyped-def]
        self, name: str, image: Picture, data_sample=None, draw_gt: bool = True, **kwargs: Any
    ) -> None:
        """Draw a data sample for all backends; arguments as in ``DetLocalVisualizer``."""
        self._factor = enlargement(image.shape, self.min_side)
        self._levels = self._truths = None
        if data_sample is not None:
            self._levels = data_sample.metainfo.get("quantile_levels")
            if draw_gt and self.overlay_truth and "gt_instances" in data_sample:
                self._truths = as_numpy(data_sample.gt_instances.bboxes)
                draw_gt = False
        if self._factor > 1:
            size = tuple(round(side * self._factor) for side in image.shape[1::-1])
            image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_CUBIC), np.uint8)
        super().add_datasample(name, image, data_sample, draw_gt=draw_gt, **kwargs)

    def _draw_instances(
        self, image: Picture, instances: Any, classes: Sequence[str] | None, palette: Any
    ) -> Picture:
        if "bboxes" not in instances:
            return image
        labels = [int(label) for label in instances.labels]
        quantiles = None
        if "bbox_quantiles" in instances:
            if self._levels is None:
                raise ValueError(
                    "predictions carry bbox_quantiles, but the data sample's metainfo has no "
                    "quantile_levels."
                )
            quantiles = as_numpy(instances.bbox_quantiles) * self._factor
        predicted = "scores" in instances
        truths = self._truths if predicted else None
        return draw_quantile_boxes(
            image,
            as_numpy(instances.bboxes) * self._factor,
            labels,
            quantiles=quantiles,
            levels=self._levels,
            captions=self._captions(instances, labels, classes),
            colours=[self.bbox_color] * len(labels) if self.bbox_color is not None else None,
            truths=None if truths is None else truths * self._factor,
        )

    @staticmethod
    def _captions(instances: Any, labels: list[int], classes: Sequence[str] | None) -> list[str]:
        captions = [str(classes[label]) if classes else f"class {label}" for label in labels]
        if "scores" in instances:
            scores = as_numpy(instances.scores)
            captions = [f"{text} {score:.2f}" for text, score in zip(captions, scores, strict=True)]
        if "bbox_std" in instances:
            spread = as_numpy(instances.bbox_std).mean(-1)
            captions = [f"{text} ±{std:.1f} px" for text, std in zip(captions, spread, strict=True)]
        return captions
