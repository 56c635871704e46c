"""Images made worse on purpose: does a detector notice that it sees less?

Every image has its own disturbance, drawn from its pixels, and a severity scales that one
disturbance; so results are reproducible, and a higher severity is the same picture made worse.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmdet.registry import TRANSFORMS
from numpy.typing import NDArray

from aqf_core.errors import DomainError, UnknownNameError

from .transforms import Results

FloatImage = NDArray[np.float32]

MAX_SEVERITY = 5
# Blur and noise follow ImageNet-C (Hendrycks and Dietterich 2019): standard deviation of a Gaussian
# kernel for a side of 224 pixels, and of Gaussian noise for grey values in [0, 1].
BLUR_SIGMAS = (1.0, 2.0, 3.0, 4.0, 6.0)
NOISE_SIGMAS = (0.08, 0.12, 0.18, 0.26, 0.38)
FOG_DENSITIES = (0.4, 0.7, 1.0, 1.4, 1.9)
FOG_GREY = 220.0


def _blur(image: FloatImage, strength: float, rng: np.random.Generator) -> FloatImage:
    """Gaussian blur, its width relative to the size of the image."""
    sigma = strength * float(np.sqrt(image.shape[0] * image.shape[1])) / 224
    blurred: FloatImage = np.empty_like(image)
    cv2.GaussianBlur(image, (0, 0), sigma, dst=blurred, borderType=cv2.BORDER_REFLECT)
    return blurred


def _noise(image: FloatImage, strength: float, rng: np.random.Generator) -> FloatImage:
    """Independent Gaussian noise in every pixel and channel."""
    return image + 255 * strength * rng.standard_normal(image.shape, dtype=np.float32)


def _fog(image: FloatImage, strength: float, rng: np.random.Generator) -> FloatImage:
    """A veil of light: transmission exp(-strength * d), where d in [0.5, 1.5] drifts slowly."""
    height, width = image.shape[:2]
    drift = np.zeros((height, width), np.float32)
    for octave in range(1, 6):
        grid = rng.random((2**octave + 1, 2**octave + 1), dtype=np.float32)
        drift += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) / 2**octave
    spread = float(drift.max() - drift.min())
    depth = 0.5 + (drift - drift.min()) / max(spread, 1e-6)
    transmission = np.exp(-strength * depth).reshape(height, width, *[1] * (image.ndim - 2))
    return FOG_GREY + (image - FOG_GREY) * transmission


_KINDS: dict[
    str,
    tuple[tuple[float, ...], Callable[[FloatImage, float, np.random.Generator], FloatImage]],
] = {
    "blur": (BLUR_SIGMAS, _blur),
    "noise": (NOISE_SIGMAS, _noise),
    "fog": (FOG_DENSITIES, _fog),
}
KINDS = tuple(_KINDS)


def corrupt_image(image: NDArray, kind: str, severity: int, seed: int = 0) -> NDArray:
    """A disturbed copy of an image; the same for the same image, kind, severity and seed.

    Args:
        image: ``(H, W, C)`` or ``(H, W)`` with values from 0 to 255.
        kind: ``"blur"``, ``"noise"`` or ``"fog"``.
        severity: 0 (nothing) to 5.
        seed: Another seed draws another disturbance.

    Returns:
        Array of the same shape and type.

    Example:
        >>> grey = np.full((32, 32, 3), 100, np.uint8)
        >>> [int(corrupt_image(grey, "noise", s).std()) for s in (0, 1, 5)]
        [0, 20, 79]
    """
    check_corruption(kind, severity)
    if severity == 0:
        return image
    strengths, disturb = _KINDS[kind]
    key = [zlib.crc32(image.tobytes()), zlib.crc32(kind.encode()), seed]
    rng = np.random.default_rng(key)
    disturbed = disturb(image.astype(np.float32), strengths[severity - 1], rng)
    clipped = np.clip(disturbed, 0, 255)
    whole = np.issubdtype(image.dtype, np.integer)
    return (np.rint(clipped) if whole else clipped).astype(image.dtype)


def check_corruption(kind: str, severity: int) -> None:
    """Refuse an unknown kind or severity in one sentence."""
    if kind not in _KINDS:
        raise UnknownNameError(f"corruption must be one of {', '.join(KINDS)}, got {kind!r}.")
    if not isinstance(severity, int) or not 0 <= severity <= MAX_SEVERITY:
        raise DomainError(
            f"severity must be a whole number from 0 to {MAX_SEVERITY}, got {severity!r}."
        )


@TRANSFORMS.register_module()
class CorruptImage(BaseTransform):
    """Disturb the image by blur, noise or fog; boxes stay where they are.

    Belongs right after the step that loads the image. (mmdet's own ``Corrupt`` draws anew every
    time and needs a further package.)

    Args:
        kind: ``"blur"``, ``"noise"`` or ``"fog"``.
        severity: 0 (nothing) to 5.
        seed: Another seed draws another disturbance.
    """

    def __init__(self, kind: str, severity: int, seed: int = 0) -> None:
        check_corruption(kind, severity)
        self.kind, self.severity, self.seed = kind, severity, seed

    def transform(self, results: Results) -> Results:
        """Replace ``img``."""
        results["img"] = corrupt_image(results["img"], self.kind, self.severity, self.seed)
        return results

    def __repr__(self) -> str:
        return f"CorruptImage(kind={self.kind!r}, severity={self.severity}, seed={self.seed})"


def insert_corruption(
    pipeline: Sequence[Mapping[str, Any]], kind: str, severity: int, seed: int = 0
) -> list[Mapping[str, Any]]:
    """A pipeline's config with :class:`CorruptImage` behind the step that loads the image.

    Example:
        >>> steps = [{"type": "LoadCheckedImage"}, {"type": "Letterbox", "size": 320}]
        >>> [step["type"] for step in insert_corruption(steps, "fog", 3)]
        ['LoadCheckedImage', 'CorruptImage', 'Letterbox']
    """
    check_corruption(kind, severity)
    names = [getattr(step["type"], "__name__", str(step["type"])) for step in pipeline]
    loads = [index for index, name in enumerate(names) if name.startswith("Load") and "Im" in name]
    if not loads:
        raise DomainError(
            "the test pipeline has no step that loads an image, so there is nothing to corrupt."
        )
    step = {"type": "CorruptImage", "kind": kind, "severity": severity, "seed": seed}
    return [*pipeline[: loads[0] + 1], step, *pipeline[loads[0] + 1 :]]
