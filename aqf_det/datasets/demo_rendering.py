"""Painting of the demo scenes: textured background, plates with handwritten digits, wooden boards.

Everything is drawn at ``SUPERSAMPLE`` times the final size and averaged down, so that sides at
fractional pixel positions are visible as such.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

SUPERSAMPLE = 4

Canvas = NDArray[np.float32]
Rect = tuple[float, float, float, float]  # x1, y1, x2, y2 in final pixels


@dataclass(frozen=True)
class Plate:
    """What is painted of one object: never more than what is visible depends on.

    Attributes:
        rect: The painted rectangle; an occluded plate is painted to its largest possible extent.
        digit_rect: The square that holds the digit.
        digit: ``(8, 8)`` grey levels in [0, 1] from scikit-learn's handwritten digits.
        tint: BGR shift of the plate's colour.
        seed: Seed of the colours.
    """

    rect: Rect
    digit_rect: Rect
    digit: NDArray[np.float32]
    tint: tuple[float, float, float]
    seed: int


def _noise(rng: np.random.Generator, size: int, cell: int) -> Canvas:
    """Smooth noise of zero mean and unit amplitude with features of about ``cell`` pixels."""
    grid = rng.standard_normal((size // cell + 3, size // cell + 3)).astype(np.float32)
    return np.asarray(cv2.resize(grid, (size, size), interpolation=cv2.INTER_CUBIC), np.float32)


def _colour(rng: np.random.Generator, low: float, high: float, chroma: float) -> Canvas:
    """A BGR colour of the given brightness range and colourfulness."""
    base = rng.uniform(low, high)
    return np.clip(base + rng.uniform(-chroma, chroma, 3), 0, 255).astype(np.float32)


def _slices(rect: Rect) -> tuple[slice, slice]:
    x1, y1, x2, y2 = (round(value * SUPERSAMPLE) for value in rect)
    return slice(max(0, y1), y2), slice(max(0, x1), x2)


def paint_background(rng: np.random.Generator, size: int) -> Canvas:
    """A ``(size * S, size * S, 3)`` texture: two colours blended by noise, weave and grain."""
    blend = _noise(rng, size, size // int(rng.integers(3, 7))) * 0.35 + 0.5
    first, second = _colour(rng, 90, 190, 45), _colour(rng, 60, 160, 45)
    texture = first + (second - first) * np.clip(blend, 0, 1)[..., None]
    angle, period = rng.uniform(0, np.pi), rng.uniform(6, 16)
    y, x = np.mgrid[:size, :size].astype(np.float32)
    weave = np.sin(2 * np.pi * (x * np.cos(angle) + y * np.sin(angle)) / period)
    texture += (rng.uniform(3, 10) * weave + 6 * _noise(rng, size, 2))[..., None]
    full = size * SUPERSAMPLE
    return cv2.resize(texture.astype(np.float32), (full, full), interpolation=cv2.INTER_NEAREST)


def paint_plate(canvas: Canvas, plate: Plate) -> None:
    """Paint a bright plate with a dark rim and a digit written on it."""
    rng = np.random.default_rng(plate.seed)
    tint = rng.uniform(0.8, 1.2) * np.array(plate.tint)
    face = (_colour(rng, 180, 215, 10) + tint).astype(np.float32)
    ink = _colour(rng, 15, 75, 30)
    rows, columns = _slices(plate.rect)
    area = canvas[rows, columns]
    height, width = area.shape[:2]
    shade = np.linspace(6, -6, height, dtype=np.float32)[:, None, None]
    area[:] = face + shade
    rim = round(1.2 * SUPERSAMPLE)
    for edge in (area[:rim], area[-rim:], area[:, :rim], area[:, -rim:]):
        edge[:] = 0.45 * face
    rows, columns = _slices(plate.digit_rect)
    target = canvas[rows, columns]
    glyph = cv2.resize(plate.digit, target.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    stroke = np.clip((glyph - 0.25) * 2.2, 0, 1)[..., None] * rng.uniform(0.8, 1.0)
    target[:] = target * (1 - stroke) + ink * stroke


def paint_board(canvas: Canvas, rect: Rect, seed: int) -> None:
    """Paint an opaque wooden board: planks with grain along the longer side and a dark outline."""
    rng = np.random.default_rng(seed)
    rows, columns = _slices(rect)
    area = canvas[rows, columns]
    height, width = area.shape[:2]
    tone = np.array([45, 85, 130], np.float32) * rng.uniform(0.75, 1.15)
    length = max(height, width)
    grain = cv2.resize(
        rng.standard_normal((length // (2 * SUPERSAMPLE) + 1, 3)).astype(np.float32),
        (length, length),
        interpolation=cv2.INTER_CUBIC,
    )
    area[:] = tone + 9 * (grain.T if height > width else grain)[:height, :width, None]
    rim = round(1.0 * SUPERSAMPLE)
    for edge in (area[:rim], area[-rim:], area[:, :rim], area[:, -rim:]):
        edge[:] *= 0.5


def finish(canvas: Canvas, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Average down to the final size and add sensor noise; ``(size, size, 3)`` BGR."""
    size = canvas.shape[0] // SUPERSAMPLE
    image = cv2.resize(canvas, (size, size), interpolation=cv2.INTER_AREA)
    image = image * rng.uniform(0.85, 1.1) + rng.normal(0, 3, image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)
